"""A training step in two parts: a replica computes on variables of its own, and the result updates shared variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from partitioner.emit.graph.variables import held_variable, variable_homes
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.pipeline.replica import Replica, ReplicaRun
from partitioner.emit.pipeline.staged_step import StagedStep, StepRun
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import Phase
from partitioner.ir.stage_programs import CarriedState, StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.programs import stage_programs

_ANY_SHAPE: Any = None


class OwnVariables:
    """A replica's copies of the shared variables that its forwards and backwards use.

    Args:
        number: Number of the replica.
        is_remote: Whether it is in another process. Pulled values then wait in this process: a pull blocks the other
            replicas, so it must not wait for a worker.
    """

    def __init__(self, number: int, *, is_remote: bool) -> None:
        self.number, self.is_remote = number, is_remote
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._pull: Any = None
        self._receive: Any = None
        self._pulled: Any = ()

    def of(self, step: CapturedStep, programs: StagePrograms, execution: Execution) -> dict[str, Any]:
        """The copies for some programs, by variable name in the op graph; made as needed."""
        used = {v for program in programs.programs for op in program.ops for v in step.graph.op[op].variables}
        homes = variable_homes(execution.placement, ((op.name, op.variables) for op in step.graph.ops))
        variables = {}
        for placeholder, name in step.variable_names.items():
            if name in used:
                shared = held_variable(step.variables[placeholder])
                if id(shared) not in self._pairs:
                    with tf.device(execution.device(homes[name], self.number)):
                        own = tf.Variable(shared, trainable=False, dtype=shared.dtype)
                    self._pairs[id(shared)] = (shared, own)
                    self._pull = None
                variables[name] = self._pairs[id(shared)][1]
        return variables

    def pull(self) -> None:
        """Read the shared variables; `receive` writes the values to the replica's own variables."""
        if self._pull is None:
            self._pull, self._receive = self._functions()
        self._pulled = self._pull()

    def receive(self) -> None:
        """Write the pulled values to the replica's own variables."""
        if self._receive is not None:
            self._receive(*self._pulled)
            self._pulled = ()

    def _functions(self) -> tuple[Any, Any]:
        """The function that pulls, and the function that receives if that is a separate call."""
        shared = [pair[0] for pair in self._pairs.values()]
        own = [pair[1] for pair in self._pairs.values()]

        def read() -> list[Any]:
            with tf.device(HOST):
                return [tf.identity(variable.read_value()) for variable in shared]

        def write(*values: Any) -> None:
            for variable, value in zip(own, values, strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in shared]
        if not self.is_remote:
            return tf.function(lambda: write(*shared), autograph=False).get_concrete_function(), None
        receive = tf.function(write, autograph=False).get_concrete_function(*specs)
        return tf.function(read, autograph=False).get_concrete_function(), receive


class GradientStep(StagedStep):
    """The forwards and backwards of one replica, without side effects.

    Args:
        step: The captured training step.
        execution: Where all replicas run.
        own: The replica's variables.
        needed: Names of the microbatches' tensors that the update needs.

    Raises:
        UsageError: The step cannot run in that many microbatches.
    """

    def __init__(self, step: CapturedStep, execution: Execution, own: OwnVariables, needed: Sequence[str]) -> None:
        self._own = own
        self._needed = tuple(needed)
        effects = tuple(name for name in step.side_effects if step.graph.op[name].phase is not Phase.UPDATE)
        alone = replace(step, outputs={**step.outputs, "needed": self._needed}, side_effects=effects)
        super().__init__(alone, replace(execution, alone=True), results=(*step.results, "needed"))

    def results_of(self, run: StepRun) -> dict[str, Any]:
        """The results, the tensors that the update needs, and each carried state before and after."""
        gate = run.run_microbatches()
        (gathered,) = run.gathered()
        results = run.wanted(gathered, gate)
        (replica,) = run.runs
        states = {
            state.variable: (replica.values.get(state.read), replica.final(state.written))
            for state in self.programs.states
        }
        results |= {"needed": dict(zip(self._needed, results["needed"], strict=True)), "states": states}
        return tf.nest.map_structure(_bring_here, results) if self._own.is_remote else results

    def _make_replicas(self) -> list[Replica]:
        variables = self._own.of(self.step, self.programs, self.execution)
        return [Replica(self.step, self.programs, self.execution, self._own.number, variables)]


class SharedUpdate:
    """The updates of a step on the shared variables.

    Args:
        step: The captured training step; its variables are the shared variables, on the first replica's devices.
        execution: Where all replicas run.
    """

    def __init__(self, step: CapturedStep, execution: Execution) -> None:
        programs = stage_programs(step, execution, results=step.results)
        self._graph = step.graph
        self._states = programs.states
        self.needed = tuple(programs.gathered)
        # An update reads the parameter now, not when the gradient was computed.
        self._replica = Replica(step, replace(programs, forward=(), backward=(), states=()), execution, 0)

    @property
    def specs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """TensorSpecs of its arguments."""
        states = {
            state.variable: (state.read and self._spec(state.read), self._spec(state.written)) for state in self._states
        }
        return {name: self._spec(name) for name in self.needed}, states

    def __call__(self, needed: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """Apply the tensors and states that a replica's `GradientStep` returned."""
        with tf.name_scope("shared_update"):
            run = ReplicaRun(self._replica, [])
            run.run([])
            run.update(needed, tf.no_op(), {})
            for state in self._states:
                self._write(state, *states[state.variable])
        for function in self._replica.functions():
            function.register()

    def _spec(self, tensor: str) -> Any:
        return tf.TensorSpec(_ANY_SHAPE, tf.as_dtype(self._graph.tensor[tensor].spec.dtype))

    def _write(self, state: CarriedState, before: Any, after: Any) -> None:
        """Write the replica's statistic, or advance an integer (a count, random state) by the replica's change."""
        handle = self._replica.handle(state.variable)
        with tf.device(handle.device):
            if before is not None and after.dtype.is_integer:
                now = tf.raw_ops.ReadVariableOp(resource=handle, dtype=after.dtype)
                after = now + (after - before)
            tf.raw_ops.AssignVariableOp(resource=handle, value=after)


def _bring_here(value: Any) -> Any:
    """Copy a result to this process, so that it does not depend on the worker that made it."""
    with tf.device(HOST):
        return None if value is None else tf.identity(value)
