"""A training step in two: what a replica computes on variables of its own, and what updates those that all share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from partitioner.emit.replica import Replica, ReplicaRun
from partitioner.emit.staged_step import StagedStep, StepRun
from partitioner.emit.variables import held_variable, variable_homes
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import Phase
from partitioner.ir.stage_programs import CarriedState, StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.programs import stage_programs

RESULTS = ("loss", "y_pred")


class OwnVariables:
    """A replica's copies of the shared variables that its forwards and backwards use.

    Args:
        number: Of the replica.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self._pull: Any = None

    def of(self, step: CapturedStep, programs: StagePrograms, execution: Execution) -> dict[str, Any]:
        """The copies for some programs, by the names that variables have in the op graph; made as needed."""
        used = {v for program in programs.programs for op in program.ops for v in step.graph.op[op].variables}
        homes = variable_homes(execution.placement, ((op.name, op.variables) for op in step.graph.ops))
        found = {}
        for placeholder, name in step.variable_names.items():
            if name in used:
                shared = held_variable(step.variables[placeholder])
                if id(shared) not in self._pairs:
                    with tf.device(execution.device(homes[name], self.number)):
                        own = tf.Variable(shared, trainable=False, dtype=shared.dtype)
                    self._pairs[id(shared)] = (shared, own)
                    self._pull = None
                found[name] = self._pairs[id(shared)][1]
        return found

    def pull(self) -> None:
        """Copy the shared variables into the own ones."""
        if self._pull is None:
            pairs = list(self._pairs.values())
            copy_all = tf.function(lambda: [own.assign(shared).op for shared, own in pairs] and None, autograph=False)
            self._pull = copy_all.get_concrete_function()
        self._pull()


class GradientStep(StagedStep):
    """Forwards and backwards of one replica, alone, which change nothing.

    Args:
        step: The captured training step.
        execution: Where all replicas run.
        own: The replica's variables.
        needed: Names of the tensors that the update needs of the microbatches.

    Raises:
        UsageError: The step cannot run in that many microbatches.
    """

    def __init__(self, step: CapturedStep, execution: Execution, own: OwnVariables, needed: Sequence[str]) -> None:
        self._own = own
        self._needed = tuple(needed)
        effects = tuple(name for name in step.side_effects if step.graph.op[name].phase is not Phase.UPDATE)
        alone = replace(step, outputs={**step.outputs, "needed": self._needed}, side_effects=effects)
        super().__init__(alone, replace(execution, alone=True), results=(*RESULTS, "needed"))

    def results_of(self, run: StepRun) -> dict[str, Any]:
        """The results, what the update needs, and each carried state before and after."""
        gate = run.run_microbatches()
        (gathered,) = run.gathered()
        found = run.wanted(gathered, gate)
        (replica,) = run.runs
        states = {
            state.variable: (replica.values.get(state.read), replica.final(state.written))
            for state in self.programs.states
        }
        return {**found, "needed": dict(zip(self._needed, found["needed"], strict=True)), "states": states}

    def _make_replicas(self) -> list[Replica]:
        variables = self._own.of(self.step, self.programs, self.execution)
        return [Replica(self.step, self.programs, self.execution, self._own.number, variables)]


class SharedUpdate:
    """The updates of a step on the shared variables.

    Args:
        step: The captured training step; its variables are the shared ones, where the first replica runs.
        execution: Where all replicas run.
    """

    def __init__(self, step: CapturedStep, execution: Execution) -> None:
        programs = stage_programs(step, execution, results=RESULTS)
        self._states = programs.states
        self.needed = tuple(programs.gathered)
        # Whatever reads a parameter for its update reads it now, not when the gradient was computed.
        self._replica = Replica(step, replace(programs, forward=(), backward=(), states=()), execution, 0)

    def __call__(self, needed: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """Update by what a replica's `GradientStep` returned under these names."""
        with tf.name_scope("shared_update"):
            run = ReplicaRun(self._replica, [])
            run.run([])
            run.update(needed, tf.no_op())
            for state in self._states:
                self._write(state, *states[state.variable])
        for function in self._replica.functions():
            function.register()

    def _write(self, state: CarriedState, before: Any, after: Any) -> None:
        """A statistic becomes the replica's; a whole number (a count, random state) moves on as far as its did."""
        handle = self._replica.handle(state.variable)
        with tf.device(handle.device):
            if before is not None and after.dtype.is_integer:
                now = tf.raw_ops.ReadVariableOp(resource=handle, dtype=after.dtype)
                after = now + (after - before)
            tf.raw_ops.AssignVariableOp(resource=handle, value=after)
