"""A replica of a step in stages: its functions, on its devices, for its variables; and a run of its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from partitioner.emit.graph.mirrored_variable import copy_on
from partitioner.emit.graph.variables import held_variable
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.pipeline.stage_function import StageFunction, StageFunctions, run_independently
from partitioner.ir.execution import SEED_STRIDE, Execution
from partitioner.ir.stage_programs import Gather, StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.actions import KIND_OF_CALLS, Action, ActionKind
from partitioner.stages.coupling import random_states
from partitioner.stages.relays import relays

_NOT_COPIED = (tf.string, tf.variant, tf.resource)  # no kernel of a GPU copies text; handles are no data


class Replica:
    """The stage functions of a replica, and the variables they use.

    Args:
        step: The captured step.
        programs: Its stage programs, for the first replica.
        execution: Where all replicas run.
        number: Number of the replica.
        variables: The TensorFlow variables it uses in place of its copies of the step's, by name in the op graph.
    """

    def __init__(
        self,
        step: CapturedStep,
        programs: StagePrograms,
        execution: Execution,
        number: int,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.step, self.programs, self.number = step, programs, number
        self.num_microbatches = execution.num_microbatches
        functions = StageFunctions(step, programs, execution, replica=number)
        self.once = [functions.build(program) for program in programs.once]
        several = self.num_microbatches > 1
        self.repeated = [functions.build(program, accumulate=several) for program in programs.repeated]
        self._of_action = {(KIND_OF_CALLS[f.program.kind], f.program.stage): f for f in self.repeated}
        self.update = [functions.build(program) for program in programs.update]
        self.relays = relays(function.program for function in self.repeated)
        if variables is None:
            held = {name: held_variable(variable) for name, variable in step.variables.items()}
            used = {
                name: copy_on(variable, execution.device(variable.device, number)) for name, variable in held.items()
            }
        else:
            used = {p: variables[name] for p, name in step.variable_names.items() if name in variables}
        outside = dict(step.captures) | {name: variable.handle for name, variable in used.items()}
        self._outside = outside
        self._handle = {step.variable_names[p]: handle for p, handle in outside.items() if p in step.variable_names}
        self._random = random_states(step.graph) if number else frozenset()

    def functions(self) -> list[StageFunction]:
        """All functions, in an order in which a microbatch can run."""
        return [*self.once, *self.repeated, *self.update]

    def of(self, action: Action) -> StageFunction:
        """The function that an action calls."""
        return self._of_action[action.kind, action.stage]

    def outside(self, name: str) -> Any:
        """A captured tensor from outside the step."""
        return self._outside[name]

    def handle(self, variable: str) -> Any:
        """The handle of a variable by its name in the op graph."""
        return self._handle[variable]

    def device_of(self, tensor: str) -> str:
        """Device of the stage that makes a tensor."""
        made = (f.program for f in self.repeated if tensor in f.program.outputs)
        return next((program.device for program in made), HOST)

    def own_start(self, variable: str, value: Any) -> Any:
        """The replica's start value of a carried variable: each replica gets random numbers of its own."""
        if variable not in self._random:
            return value
        dtype = value.dtype.as_numpy_dtype
        with tf.device(self.handle(variable).device):
            return value + tf.constant(np.array(self.number * SEED_STRIDE).astype(dtype))


class ReplicaRun:
    """A replica's part of a step: values by tensor name, of each of its microbatches and of all together.

    Args:
        replica: The replica.
        parts: Its microbatches: the arguments of the step by name.
    """

    def __init__(self, replica: Replica, parts: Sequence[dict[str, Any]]) -> None:
        self.replica, self.programs = replica, replica.programs
        self.values: dict[str, Any] = {f"{name}:0": replica.outside(name) for name in replica.step.captures}
        self.parts = parts
        self.totals: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self._handed: dict[tuple[int, str, str], Any] = {}  # to a device, of a microbatch, by tensor

    def run(self, order: Iterable[Action]) -> None:
        """Call the programs that run once, and then all forwards and backwards."""
        for function in self.replica.once:
            self.values |= self._call(function, self.values)
        for state in self.programs.states:
            if state.read:
                self.values[state.read] = self.replica.own_start(state.variable, self.values[state.read])
        carried = {state.read: state.written for state in self.programs.states if state.read}
        for action in order:
            part = self.parts[action.microbatch]
            if action.microbatch and action.kind is ActionKind.FORWARD:
                before = self.parts[action.microbatch - 1]
                part |= {read: before[written] for read, written in carried.items() if written in before}
            self._act(action, part)

    def gathered(self, name: str, how: Gather) -> Any:
        """A tensor gathered over its microbatches."""
        if name in self.values:
            return self.values[name]
        if how is Gather.SUM and name in self.totals:
            return self.totals[name]
        if how is Gather.CONCAT and len(self.parts) > 1:
            with tf.device(self.replica.device_of(name)):
                return tf.concat([part[name] for part in self.parts], axis=0)
        return self.parts[0][name]

    def update(
        self, gathered: Mapping[str, Any], lock: Any, done: dict[tuple[str, str], Mapping[str, Any]]
    ) -> list[Any]:
        """Run the updates while `lock` is held; returns values that exist when all variables are written.

        `done` has the updates of earlier replicas on shared devices, by label and device; the others are added to it.
        """
        self.values |= gathered
        ended: list[Any] = []
        for function in self.replica.update:
            key = function.label, function.program.device
            if key not in done:
                after = [lock, *(ended[index] for index in function.program.waits_for)]
                done[key] = self._call(function, self.values, after=after)
            ended.append(done[key][function.label])
            self.values |= done[key]
        return ended

    def final(self, written: str) -> Any:
        """The value of a carried state after the last microbatch; None if nothing wrote it."""
        return self.parts[-1].get(written, self.values.get(written))

    def _on(self, device: str, name: str, part: Mapping[str, Any]) -> Any:
        """A tensor of a microbatch for a device: as it was made, or as a device that has read it hands it on."""
        relay = self.replica.relays.get((name, device))
        if relay is None or part[name].dtype in _NOT_COPIED:
            return part[name]
        key = id(part), name, relay
        if key not in self._handed:
            with tf.device(relay):
                self._handed[key] = tf.identity(self._on(relay, name, part))
        return self._handed[key]

    def _act(self, action: Action, part: dict[str, Any]) -> None:
        function = self.replica.of(action)
        device = function.program.device
        after = [self.last[device]] if self.last.get(device) is not None else []
        with tf.device(device), tf.control_dependencies(after):
            totals = [self.totals[n] if n in self.totals else self._zero(n, function) for n in function.sums]
        made = self._call(function, part, totals=totals, after=after, name=str(action))
        run_independently(made[function.label])
        self.totals |= {name: made[name] for name in function.sums}
        part |= made
        # Python drops a control edge to an op that already reads its source, and with it the order of calls
        # once calls are all that is left: a no-op in between keeps it.
        with tf.device(device), tf.control_dependencies([made[function.label]]):
            self.last[device] = tf.no_op(name=f"{action}_done")

    def _zero(self, tensor: str, function: StageFunction) -> Any:
        """What the first gradient is added to; a scalar will do, but XLA would compile a program of its own for it."""
        graph = self.replica.step.graph
        spec = graph.tensor[tensor].spec
        return tf.zeros(spec.shape if function.is_compiled and not graph.assumed_shapes else (), spec.dtype)

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
        given = [self._on(program.device, n, part) if n in part else self.values[n] for n in program.inputs]
        outside = [self.replica.outside(n) for n in function.captures]
        with tf.device(program.device), tf.control_dependencies(after), tf.name_scope(name or function.label):
            made = function.call([*given, *totals, *outside])
        return dict(zip((*program.outputs, function.label), made, strict=True))
