"""Build a step that runs in microbatches: calls of stage functions, in the order of a schedule.

Forward and backward functions change nothing: what the forward pass writes (moving averages, random state) is carried
from one microbatch to the next as a value. Only when every backward has ended do variables change, so a step that fails
before leaves each as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from partitioner.emit.microbatches import HOST, cut_batch
from partitioner.emit.stage_function import StageFunction, StageFunctions
from partitioner.emit.update_lock import acquire_updates, release_updates
from partitioner.emit.variables import held_variable
from partitioner.errors import UsageError
from partitioner.ir.execution import Execution
from partitioner.ir.stage_programs import Gather
from partitioner.ir.step import CapturedStep, LossReduction
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.programs import stage_programs
from partitioner.stages.schedules import ScheduleKind, device_orders, merged_order


class StagedStep:
    """The stage functions of a step, and the step made of them.

    Args:
        step: The captured step; its variables are where the execution has them.
        execution: Where and in which order it runs.
        results: Which of the step's outputs to return.
        side_effects: Whether to run what the step changes.

    Raises:
        UsageError: The step cannot run in that many microbatches.
    """

    def __init__(
        self, step: CapturedStep, execution: Execution, *, results: Sequence[str], side_effects: bool = True
    ) -> None:
        self.step, self.execution = step, execution
        self.wanted = {key: step.outputs[key] for key in results if key in step.outputs}
        self.programs = stage_programs(step, execution, results=results, side_effects=side_effects)
        self.changed = self.programs.states if side_effects else ()
        self.num_microbatches = execution.num_microbatches
        if self.num_microbatches > 1 and step.uncuttable:
            raise UsageError(f"the batch cannot be cut into microbatches: {step.uncuttable}", help="--microbatches 1")
        training = bool(self.programs.backward)
        orders = device_orders(
            ScheduleKind(execution.schedule), self.programs.stages, self.num_microbatches, training=training
        )
        self.order = merged_order(orders, len(self.programs.stages))
        functions = StageFunctions(step, self.programs, execution.placement, execution.stage_devices)
        self.once = [functions.build(program) for program in self.programs.once]
        self.forward = [functions.build(program) for program in self.programs.forward]
        several = self.num_microbatches > 1
        self.backward = [functions.build(program, accumulate=several) for program in self.programs.backward]
        self.update = [functions.build(program) for program in self.programs.update]
        outside = dict(step.captures) | {name: held_variable(v).handle for name, v in step.variables.items()}
        self._outside = outside
        self._handle = {step.variable_names[p]: handle for p, handle in outside.items() if p in step.variable_names}

    def __call__(self, *arguments: Any) -> dict[str, Any]:
        """Run one step on (x, y, sample_weight), in a graph or eagerly; results keyed as asked for."""
        # A scope of its own, lest an op of it has the name of one in the plan.
        with tf.name_scope("staged_step"):
            found = _Run(self, [value for value in tf.nest.flatten(arguments) if value is not None]).results()
        if not tf.executing_eagerly():
            for function in self.functions():
                function.register()
        return found

    def functions(self) -> list[StageFunction]:
        """All of them, in an order in which one microbatch can run."""
        return [*self.once, *self.forward, *reversed(self.backward), *self.update]

    def of(self, action: Action) -> StageFunction:
        """The function that an action calls."""
        return (self.forward if action.kind is ActionKind.FORWARD else self.backward)[action.stage]

    def outside(self, name: str) -> Any:
        """A captured tensor from outside the step."""
        return self._outside[name]

    def handle(self, variable: str) -> Any:
        """The handle of a variable by its name in the op graph."""
        return self._handle[variable]


class _Run:
    """One step: values by tensor name, of the whole step and of each microbatch."""

    def __init__(self, staged: StagedStep, arguments: Sequence[Any]) -> None:
        self.staged, self.programs = staged, staged.programs
        self.values: dict[str, Any] = {f"{name}:0": staged.outside(name) for name in staged.step.captures}
        self.parts: list[dict[str, Any]] = [{} for _ in range(staged.num_microbatches)]
        self.totals: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self._cut_batch(arguments)

    def results(self) -> dict[str, Any]:
        for function in self.staged.once:
            self.values |= self._call(function, self.values)
        carried = {state.read: state.written for state in self.programs.states if state.read}
        for action in self.staged.order:
            part = self.parts[action.microbatch]
            if action.microbatch and action.kind is ActionKind.FORWARD:
                before = self.parts[action.microbatch - 1]
                part |= {read: before[written] for read, written in carried.items() if written in before}
            self._act(action, part)
        ended = list(self.last.values())
        with tf.device(HOST), tf.control_dependencies(ended):
            gate = tf.no_op(name="all_ended")
        gathered = {name: self._gathered(name, how) for name, how in self.programs.gathered.items()}
        found = self._found(gathered)
        if self.programs.update or self.staged.changed:
            with tf.control_dependencies([gate]):
                lock = acquire_updates()
            with tf.control_dependencies(self._update(gathered, lock)):
                release_updates(lock)
        return tf.nest.map_structure(lambda name, value: self._result(name, value, gate), self.staged.wanted, found)

    def _cut_batch(self, arguments: Sequence[Any]) -> None:
        step, count = self.staged.step, self.staged.num_microbatches
        self.weights: list[Any] = [1.0]
        self.sizes: list[Any] = []
        parts = [list(arguments)]
        if count > 1:
            # As a function of its own, so that its ops have names when it is called from Python.
            parts, self.weights, self.sizes = tf.function(cut_batch, autograph=False)(list(arguments), count)
        if step.loss_reduction is LossReduction.SUM and count > 1:
            with tf.device(HOST):
                self.weights = [tf.cast(size > 0, tf.float32) for size in self.sizes]
        for part, values, weight in zip(self.parts, parts, self.weights, strict=True):
            part.update(zip(step.inputs, values, strict=True))
            if step.seed:
                with tf.device(HOST):
                    part[step.seed] = tf.cast(weight, step.graph.tensor[step.seed].spec.dtype)

    def _act(self, action: Action, part: dict[str, Any]) -> None:
        function = self.staged.of(action)
        device = function.program.device
        after = [self.last[device]] if self.last.get(device) is not None else []
        with tf.device(device):
            totals = [self.totals[n] if n in self.totals else self._zero(n) for n in function.sums]
        made = self._call(function, part, totals=totals, after=after, name=str(action))
        _run_independently(made[function.label])
        self.totals |= {name: made[name] for name in function.sums}
        part |= made
        # Python drops a control edge to an op that already reads what its source makes, and with it the order of calls
        # once calls are all that is left: a no-op in between keeps it.
        with tf.device(device), tf.control_dependencies([made[function.label]]):
            self.last[device] = tf.no_op(name=f"{action}_done")

    def _zero(self, tensor: str) -> Any:
        return tf.constant(0, self.staged.step.graph.tensor[tensor].spec.dtype)

    def _call(
        self,
        function: StageFunction,
        part: Mapping[str, Any],
        *,
        totals: Sequence[Any] = (),
        after: Sequence[Any] = (),
        name: str = "",
    ) -> dict[str, Any]:
        program = function.program
        given = [part[n] if n in part else self.values[n] for n in program.inputs]
        outside = [self.staged.outside(n) for n in function.captures]
        with tf.device(program.device), tf.control_dependencies(after), tf.name_scope(name or function.label):
            made = function.call([*given, *totals, *outside])
        return dict(zip((*program.outputs, function.label), made, strict=True))

    def _device_of(self, tensor: str) -> str:
        """Device of the stage that makes a tensor."""
        made = (f.program for f in (*self.staged.forward, *self.staged.backward) if tensor in f.program.outputs)
        return next((program.device for program in made), HOST)

    def _gathered(self, name: str, how: Gather) -> Any:
        if name in self.values:
            return self.values[name]
        if how is Gather.SUM and name in self.totals:
            return self.totals[name]
        if how is Gather.CONCAT and len(self.parts) > 1:
            with tf.device(self._device_of(name)):
                return tf.concat([part[name] for part in self.parts], axis=0)
        return self.parts[0][name]

    def _found(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        def value(name: str | None) -> Any:
            if name is None or name in gathered or name in self.values:
                return None if name is None else gathered.get(name, self.values.get(name))
            return self._rows(name)

        def loss(name: str) -> Any:
            with tf.device(self._device_of(name)):
                parts = [part[name] * tf.cast(w, part[name].dtype) for part, w in self._weighted(name)]
                return parts[0] if len(parts) == 1 else tf.add_n(parts)

        wanted = self.staged.wanted
        return {
            key: tf.nest.map_structure(loss if key == "loss" else value, names, expand_composites=False)
            for key, names in wanted.items()
        }

    def _weighted(self, name: str) -> Sequence[tuple[Mapping[str, Any], Any]]:
        return list(zip(self.parts, self.weights, strict=True)) if name in self.parts[0] else [(self.values, 1.0)]

    def _rows(self, name: str) -> Any:
        """A result of the whole batch: the rows of every microbatch, without those that were given again."""
        if not self.sizes:
            return self.parts[0][name]
        with tf.device(self._device_of(name)):
            return tf.concat([part[name][:size] for part, size in zip(self.parts, self.sizes, strict=True)], axis=0)

    def _result(self, name: str | None, value: Any, gate: Any) -> Any:
        """A value for the caller, there once the gate is open: a step that fails must not be counted by metrics."""
        if name is None:
            return None
        with tf.device(value.device), tf.control_dependencies([gate]):
            result = tf.identity(value)
        shape = self.staged.step.graph.tensor[name].spec.shape
        result.set_shape([None, *shape[1:]] if shape else [])  # calls do not tell
        return result

    def _update(self, gathered: Mapping[str, Any], lock: Any) -> list[Any]:
        """Write every variable while `lock` is held; what has ended when all are written."""
        self.values |= gathered
        ended: list[Any] = []
        for function in self.staged.update:
            after = [lock, *(ended[index] for index in function.program.waits_for)]
            made = self._call(function, self.values, after=after)
            ended.append(made[function.label])
            self.values |= made
        for state in self.staged.changed:
            value = self.parts[-1].get(state.written, self.values.get(state.written))
            handle = self.staged.handle(state.variable)
            with tf.device(handle.device), tf.control_dependencies([lock]):
                ended.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return [one for one in ended if one is not None]


def _run_independently(tensor: Any) -> None:
    """Let the call that makes a tensor wait for its inputs and for what it was told to wait for, and for nothing else.

    TensorFlow would chain all calls with state (a random generator, a Python function) in the order they are made in,
    whichever stage they belong to, and no two devices would ever work at the same time.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    if graph.experimental_acd_manager is not None:
        graph.experimental_acd_manager.run_independently(tensor.op)
