"""Build a step that runs in microbatches and replicas: calls of stage functions, in the order of a schedule.

Forward and backward functions change no variables: values that the forward pass writes (moving averages, random state)
are carried from microbatch to microbatch. Variables change only after every backward of every replica has ended, so a
step that fails before leaves them unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from partitioner.emit.pipeline.all_reduce import all_gather, all_reduce_together
from partitioner.emit.pipeline.microbatches import HOST, SCOPE, cut_batch
from partitioner.emit.pipeline.replica import Replica, ReplicaRun
from partitioner.emit.pipeline.stage_function import StageFunction
from partitioner.emit.pipeline.update_lock import acquire_updates, release_updates
from partitioner.emit.xla.refusals import compiled_ops
from partitioner.errors import UsageError
from partitioner.ir.devices import share_memory
from partitioner.ir.execution import Execution, replica_prefix
from partitioner.ir.stage_programs import CarriedState, Gather
from partitioner.ir.step import CapturedStep, LossReduction
from partitioner.spelling import argument
from partitioner.stages.buckets import buckets
from partitioner.stages.programs import stage_programs
from partitioner.stages.schedules import ScheduleKind
from partitioner.stages.step_order import step_order


class StagedStep:
    """The stage functions of a step, and the step made of them.

    Args:
        step: The captured step; its variables are on the devices of the execution.
        execution: Its devices, microbatches and schedule.
        results: The step's outputs to return.
        side_effects: Whether to run the writes of the step.

    Raises:
        UsageError: The step cannot run in that many microbatches.
    """

    def __init__(
        self, step: CapturedStep, execution: Execution, *, results: Sequence[str], side_effects: bool = True
    ) -> None:
        self.step, self.execution = step, execution
        self.wanted = {key: step.outputs[key] for key in results if key in step.outputs}
        compiled = compiled_ops(step, execution)
        self.programs = stage_programs(step, execution, results=results, side_effects=side_effects, compiled=compiled)
        self.changed = self.programs.states if side_effects else ()
        if execution.num_parts > 1 and step.uncuttable:
            parts = "replicas" if execution.num_replicas > 1 else "microbatches"
            raise UsageError(f"the batch cannot be cut into {parts}: {step.uncuttable}", help=argument(parts, 1))
        self.order = step_order(self.programs, ScheduleKind(execution.schedule), execution.num_microbatches)
        self.replicas = self._make_replicas()

    def __call__(self, *arguments: Any) -> dict[str, Any]:
        """Run a step on (x, y, sample_weight), in a graph or eagerly; returns its results by key."""
        # A scope of its own, so that no op in it has the name of an op in the plan.
        with tf.name_scope("staged_step"):
            results = self.results_of(
                StepRun(self, [value for value in tf.nest.flatten(arguments) if value is not None])
            )
        if not tf.executing_eagerly():
            for function in self.functions():
                function.register()
        return results

    def results_of(self, run: StepRun) -> dict[str, Any]:
        """Run the whole step, and return the requested results."""
        return run.results()

    def _make_replicas(self) -> list[Replica]:
        return [Replica(self.step, self.programs, self.execution, n) for n in range(self.execution.num_replicas)]

    def functions(self) -> list[StageFunction]:
        """All stage functions, replica by replica, in an order in which a microbatch can run."""
        return [function for replica in self.replicas for function in replica.functions()]


class StepRun:
    """A run of a step: the runs of all replicas, and their combined results."""

    def __init__(self, staged: StagedStep, arguments: Sequence[Any]) -> None:
        self.staged, self.programs = staged, staged.programs
        self.parts: list[dict[str, Any]] = [{} for _ in range(staged.execution.num_parts)]
        self._cut_batch(arguments)
        each = staged.execution.num_microbatches
        self.runs = [
            ReplicaRun(replica, self.parts[index * each :][:each]) for index, replica in enumerate(staged.replicas)
        ]

    def results(self) -> dict[str, Any]:
        """Run forwards, backwards and the writes of the step; returns the requested results."""
        gate = self.run_microbatches()
        gathered = self.gathered()
        if self.programs.update or self.staged.changed:
            with tf.control_dependencies([gate]):
                lock = acquire_updates()
            with tf.control_dependencies(self._update(gathered, lock)):
                release_updates(lock)
        return self.wanted(gathered[0], gate)

    def run_microbatches(self) -> Any:
        """Run all forwards and backwards; returns an op that ends after all of them."""
        for run in self.runs:
            with _scope(run):
                run.run(self.staged.order)
        ended = [last for run in self.runs for last in run.last.values()]
        with tf.device(HOST), tf.control_dependencies(ended):
            return tf.no_op(name="all_ended")

    def wanted(self, gathered: Mapping[str, Any], gate: Any) -> dict[str, Any]:
        """The requested results, available after the gate."""
        with tf.name_scope(SCOPE):  # an op of the step may have the name that one of these would get
            results = self._results(gathered)
        return tf.nest.map_structure(lambda name, value: self._result(name, value, gate), self.staged.wanted, results)

    def _cut_batch(self, arguments: Sequence[Any]) -> None:
        step, count = self.staged.step, len(self.parts)
        self.weights: list[Any] = [1.0]
        self.sizes: list[Any] = []
        parts = [list(arguments)]
        if count > 1:
            adds_up = step.loss_reduction is LossReduction.SUM
            # As a function of its own, so that its ops have names when it is called from Python.
            cut = tf.function(cut_batch, autograph=False)
            is_even = self.staged.execution.compiled and step.graph.batch_size % count == 0
            rows_each = step.graph.batch_size // count if is_even else 0
            parts, self.weights, self.sizes = cut(list(arguments), count, adds_up, self._seed_dtype, rows_each)
        for part, values, weight in zip(self.parts, parts, self.weights, strict=True):
            part.update(zip(step.inputs, values, strict=True))
            if step.seed:
                with tf.device(HOST):
                    part[step.seed] = tf.convert_to_tensor(weight, self._seed_dtype)

    @property
    def _seed_dtype(self) -> str:
        step = self.staged.step
        return step.graph.tensor[step.seed].spec.dtype if step.seed else "float32"

    def gathered(self) -> list[dict[str, Any]]:
        """For each replica, the tensors gathered over the microbatches of all replicas."""
        gathered: list[dict[str, Any]] = [{} for _ in self.runs]
        with tf.name_scope("all_reduce") if len(self.runs) > 1 else nullcontext():
            for turn, names in enumerate(buckets(map(self._bucketed, self.programs.gathered))):
                how = self.programs.gathered[names[0]]
                devices = self._devices_of(names[0])
                values = [[run.gathered(name, how) for run in self.runs] for name in names]
                if how is Gather.SUM:
                    shapes = [self.staged.step.graph.tensor[name].spec.shape for name in names]
                    values = all_reduce_together(values, devices, shapes=shapes, turn=turn)
                elif how is Gather.CONCAT:
                    values = [all_gather(values[0], devices)]
                for name, of_replicas in zip(names, values, strict=True):
                    for values_of_replica, value in zip(gathered, of_replicas, strict=True):
                        values_of_replica[name] = value
        return gathered

    def _bucketed(self, name: str) -> tuple[str, Hashable, int]:
        """A gathered tensor as `buckets` wants it: sums over devices that do not share memory go together."""
        spec = self.staged.step.graph.tensor[name].spec
        devices = tuple(self._devices_of(name))
        goes_alone = self.programs.gathered[name] is not Gather.SUM or share_memory(devices)
        return name, None if goes_alone else (devices, spec.dtype), spec.size_bytes

    def _devices_of(self, name: str) -> list[str]:
        return [run.replica.device_of(name) for run in self.runs]

    def _results(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        first = self.runs[0]

        def value(name: str | None) -> Any:
            if name is None or name in gathered or name in first.values:
                return None if name is None else gathered.get(name, first.values.get(name))
            return self._rows(name)

        def loss(name: str) -> Any:
            with tf.device(first.replica.device_of(name)):
                parts = [part[name] * tf.cast(w, part[name].dtype) for part, w in self._weighted(name)]
                return parts[0] if len(parts) == 1 else tf.add_n(parts)

        wanted = self.staged.wanted
        return {
            key: tf.nest.map_structure(loss if key == "loss" else value, names, expand_composites=False)
            for key, names in wanted.items()
        }

    def _weighted(self, name: str) -> Sequence[tuple[Mapping[str, Any], Any]]:
        if name in self.parts[0]:
            return list(zip(self.parts, self.weights, strict=True))
        return [(self.runs[0].values, 1.0)]

    def _rows(self, name: str) -> Any:
        """A result of the whole batch: the rows of every microbatch, without repeated rows."""
        if not self.sizes:
            return self.parts[0][name]
        with tf.device(self.runs[0].replica.device_of(name)):
            return tf.concat([part[name][:size] for part, size in zip(self.parts, self.sizes, strict=True)], axis=0)

    def _result(self, name: str | None, value: Any, gate: Any) -> Any:
        """A value for the caller, available after the gate: metrics must not count a failed step."""
        if name is None:
            return None
        with tf.device(value.device), tf.control_dependencies([gate]):
            result = tf.identity(value)
        shape = self.staged.step.graph.tensor[name].spec.shape
        result.set_shape([None, *shape[1:]] if shape else [])  # calls have no static shapes
        return result

    def _update(self, gathered: Sequence[Mapping[str, Any]], lock: Any) -> list[Any]:
        """Write every variable of every replica while `lock` is held; returns values that exist after all writes."""
        ended: list[Any] = []
        done: dict[tuple[str, str], Mapping[str, Any]] = {}
        for run, values in zip(self.runs, gathered, strict=True):
            with _scope(run):
                ended += run.update(values, lock, done)
        for state in self.staged.changed:
            value = self._final(state)
            handles = [run.replica.handle(state.variable) for run in self.runs]
            for handle in {id(handle): handle for handle in handles}.values():
                with tf.device(handle.device), tf.control_dependencies([lock]):
                    ended.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return [value for value in ended if value is not None]

    def _final(self, state: CarriedState) -> Any:
        """The new value of a carried state in all replicas: the mean of a statistic, else the first replica's value."""
        values = [run.final(state.written) for run in self.runs]
        if len(values) == 1 or not values[0].dtype.is_floating:
            return values[0]
        with tf.device(self.runs[0].replica.handle(state.variable).device):
            return tf.add_n(values) / len(values)


def _scope(run: ReplicaRun) -> Any:
    """A name scope for the ops of replicas beyond the first, with the replica's number."""
    prefix = replica_prefix(run.replica.number)
    return tf.name_scope(prefix.rstrip("/")) if prefix else nullcontext()
