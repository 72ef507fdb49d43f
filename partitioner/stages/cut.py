"""Cut a placed step into stage programs.

Each op has a role; see `roles`. Forward ops form stages: maximal sets on one device that need only earlier stages.
Backward ops are in the stage of the forward op they differentiate, or in an earlier stage where they need its results
(the sum of the gradients of a skip connection may differentiate an op of any stage). A schedule may have them in two
programs: what another stage waits for, and the rest, mostly gradients of weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from cost_models.specs import ITEM_BYTES
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Op
from partitioner.ir.sizes import Node, repeated_for_sizes, sizes_among
from partitioner.ir.stage_programs import ProgramKind, StageProgram, StagePrograms
from partitioner.stages.across_microbatches import gathered, staged_states
from partitioner.stages.assignment import StageAssignment
from partitioner.stages.delayed_gradients import awaited_elsewhere
from partitioner.stages.roles import Role, Roles

_GOING_BACK = (ProgramKind.BACKWARD, ProgramKind.WEIGHTS)
# On CPUs TensorFlow uses oneDNN's kernels for the gradients of these ops only where the op itself is in the same graph.
# In a separate program the gradient of a pooling took 17 times as long; running the op again costs less.
_RERUN_ON_CPUS = ("LRN", "MaxPool", "MaxPool3D")


def cut(
    roles: Roles,
    placement: Mapping[str, str],
    *,
    devices: Collection[str] | None = None,
    recompute: Collection[int] | None = (),
    rerun: Mapping[int, Collection[str]] = MappingProxyType({}),
    parts_backward: bool = False,
    compiled: Collection[str] = frozenset(),
) -> StagePrograms:
    """The stage programs of a placed step.

    Args:
        roles: The step.
        placement: Device of every op.
        devices: Devices that may hold a stage; an op placed elsewhere (on the host of a GPU) goes with its readers.
        recompute: Stages whose backward program reruns their forward ops; None for all of them.
        rerun: Of stages that rerun only some of their forward ops, those, and any ops of other stages.
        parts_backward: Whether gradients that no other stage waits for are programs of their own.
        compiled: The ops that XLA compiles. Backward programs of these alone compute sizes again.

    Raises:
        UsageError: The step cannot be cut: one piece of state is used by several stages, or an update needs more of the
            forward pass than its gradients.
    """
    assigned = StageAssignment(roles, placement, devices)
    return _Cut(assigned, recompute, rerun, parts_backward, frozenset(compiled)).programs()


class _Cut:
    def __init__(
        self,
        assigned: StageAssignment,
        recompute: Collection[int] | None,
        rerun: Mapping[int, Collection[str]],
        parts_backward: bool,
        compiled: frozenset[str],
    ) -> None:
        self.assigned, self.parts_backward, self.compiled = assigned, parts_backward, compiled
        self.roles, self.graph, self.ops, self.inputs = assigned.roles, assigned.graph, assigned.ops, assigned.inputs
        self.role, self.device = assigned.role, assigned.device
        self.stages, self.stage = assigned.stages, assigned.stage
        self.recomputed = frozenset(range(len(self.stages)) if recompute is None else recompute)
        self.rerun = {
            stage: frozenset(name for name in names if self.stage.get(name) == stage) for stage, names in rerun.items()
        }

    def programs(self) -> StagePrograms:
        once = self.assigned.pieces([op for op in self.ops if self.role[op.name] is Role.ONCE])
        update = self._update_pieces()
        bodies: list[tuple[ProgramKind, int, str, list[str]]] = []
        bodies += [(ProgramKind.ONCE, i, self.device[ops[0]], ops) for i, ops in enumerate(once)]
        for kind, by_stage in self._repeated().items():
            bodies += [(kind, s, self.stages[s], ops) for s, ops in by_stage.items()]
        bodies += [(ProgramKind.UPDATE, i, self.device[ops[0]], ops) for i, ops in enumerate(update)]

        full = [(kind, s, device, self._body(kind, s, ops)) for kind, s, device, ops in bodies]
        needed = [self._needed(ops) for *_, ops in full]
        wanted = {*self.roles.results, *(n for names in needed for n in names)}
        wanted |= {name for state in self.roles.states for name in (state.read, state.written)}
        own = [set(ops) for *_, ops in bodies]
        made = [
            StageProgram(
                kind=kind,
                stage=stage,
                device=device,
                ops=tuple(ops),
                inputs=tuple(names),
                outputs=tuple(
                    name
                    for op in ops
                    if op in own[index]
                    for name in self.graph.op[op].outputs
                    if name in wanted and name not in self.roles.aliases
                ),
                waits_for=self._waits_for(ops, kind, update),
            )
            for index, ((kind, stage, device, ops), names) in enumerate(zip(full, needed, strict=True))
        ]
        by_kind = {kind: tuple(p for p in made if p.kind is kind) for kind in ProgramKind}
        return StagePrograms(
            stages=self.stages,
            once=by_kind[ProgramKind.ONCE],
            forward=by_kind[ProgramKind.FORWARD],
            backward=by_kind[ProgramKind.BACKWARD],
            weights=by_kind[ProgramKind.WEIGHTS],
            update=by_kind[ProgramKind.UPDATE],
            gathered=gathered(self.roles, self.role, by_kind[ProgramKind.UPDATE]),
            states=tuple(staged_states(self.roles, self.role, self.stage)),
            recomputed=self.recomputed,
            rerun=self.rerun,
            aliases=self.roles.aliases,
            relocated=self.assigned.relocated,
        )

    def _update_pieces(self) -> list[list[str]]:
        """Pieces of updates. What other devices wait for, such as the rate of this step, is in pieces of its own."""
        updates = [op for op in self.ops if self.role[op.name] is Role.UPDATE]
        awaited = awaited_elsewhere(self._sources(updates), self.device)
        first, rest = ([op for op in updates if (op.name in awaited) is is_first] for is_first in (True, False))
        return [*self.assigned.pieces(first), *self.assigned.pieces(rest)]

    def _sources(self, ops: Sequence[Op]) -> dict[str, set[str]]:
        """For each of some ops, in order, those of them that it waits for."""
        own = {op.name for op in ops}
        return {
            op.name: own.intersection([*map(self.assigned.producer, self.inputs[op.name]), *op.control_inputs])
            for op in ops
        }

    def _repeated(self) -> dict[ProgramKind, dict[int, list[str]]]:
        """Ops of the programs of a microbatch, by stage. A single stage runs forward and backward in one program."""
        is_one = len(self.stages) == 1 and not self.recomputed
        later = self._later() if self.parts_backward else frozenset()
        repeated: dict[ProgramKind, dict[int, list[str]]] = {
            ProgramKind.FORWARD: {stage: [] for stage in range(len(self.stages))},
            ProgramKind.BACKWARD: {},
            ProgramKind.WEIGHTS: {},
        }
        if not is_one and Role.BACKWARD in self.role.values():
            repeated[ProgramKind.BACKWARD] = {stage: [] for stage in range(len(self.stages))}
        for op in self.ops:
            role = self.role[op.name]
            if role is Role.FORWARD or (role is Role.BACKWARD and is_one):
                kind = ProgramKind.FORWARD
            elif role is Role.BACKWARD:
                kind = ProgramKind.WEIGHTS if op.name in later else ProgramKind.BACKWARD
            else:
                continue
            repeated[kind].setdefault(self.stage[op.name], []).append(op.name)
        return repeated

    def _later(self) -> frozenset[str]:
        """Backward ops that no other stage waits for, of stages that another one waits for.

        A stage that recomputes keeps them: they read what its backward program computes again.
        """
        backward = [op for op in self.ops if self.role[op.name] is Role.BACKWARD]
        awaited = awaited_elsewhere(self._sources(backward), self.stage)
        parted = {self.stage[name] for name in awaited} - self.recomputed
        return frozenset(op.name for op in backward if op.name not in awaited and self.stage[op.name] in parted)

    def _body(self, kind: ProgramKind, stage: int, ops: Sequence[str]) -> list[str]:
        """The ops of a program with copied constants, the forward ops it reruns, and those it repeats for sizes."""
        body = self._with_copies(kind, stage, ops)
        if kind in _GOING_BACK and all(n in self.compiled or self.role[n] is Role.COPIED for n in body):
            body = self._with_copies(kind, stage, body | self._for_sizes(body, stage))
        return sorted(body, key=self._position.__getitem__)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {op.name: index for index, op in enumerate(self.ops)}

    def _with_copies(self, kind: ProgramKind, stage: int, ops: Iterable[str]) -> set[str]:
        body = set(ops)
        stack = list(body)
        carried = {state.read for state in self.roles.states}
        while stack:
            for name in self.inputs[stack.pop()]:
                source = self.assigned.producer(name)
                if source in body or name == self.roles.seed or name in carried:
                    continue
                reruns = kind in _GOING_BACK and self._is_rerun(self.graph.op[source], stage)
                if reruns or self.role[source] is Role.COPIED:
                    body.add(source)
                    stack.append(source)
        return body

    def _for_sizes(self, body: Collection[str], stage: int) -> set[str]:
        """Ops of a stage that its compiled program repeats; it may be given parameters for it."""
        device = self.stages[stage]
        present = {n for n, r in self.role.items() if r is Role.COPIED or (r is Role.ONCE and self.device[n] == device)}
        repeatable = {n for n, s in self.stage.items() if s == stage and n in self.compiled}
        repeatable -= {op.name for op in self.ops if op.stateful or op.variables}
        return repeated_for_sizes(
            self._needed(body), self._nodes, self._sizes, present=present.union(body), repeatable=repeatable
        )

    @cached_property
    def _nodes(self) -> list[Node]:
        return [Node(op.name, op.type, self.inputs[op.name]) for op in self.ops]

    @cached_property
    def _sizes(self) -> frozenset[str]:
        return sizes_among(self._nodes)

    def _is_rerun(self, op: Op, stage: int) -> bool:
        """Whether the backward program of a stage runs an op again instead of reading its results."""
        if self.role[op.name] is not Role.FORWARD or self.stage[op.name] != stage or op.stateful:
            return False
        if op.type in _RERUN_ON_CPUS and DeviceName.parse(self.stages[stage]).type == "CPU":
            return True
        return self._widens(op) or (stage in self.recomputed and op.name in self.rerun.get(stage, (op.name,)))

    def _widens(self, op: Op) -> bool:
        """Whether an op makes a wider type of the same values: keeping the narrow one takes less memory."""
        if op.type != "Cast":
            return False
        before, after = (self.graph.tensor[name].spec for name in (*op.inputs, *op.outputs))
        return ITEM_BYTES[before.dtype] < ITEM_BYTES[after.dtype]

    def _needed(self, ops: Collection[str]) -> list[str]:
        body = set(ops)
        names = (name for op in ops for name in self.inputs[op])
        return list(dict.fromkeys(n for n in names if n == self.roles.seed or self.assigned.producer(n) not in body))

    def _waits_for(self, ops: Sequence[str], kind: ProgramKind, update: Sequence[Sequence[str]]) -> tuple[int, ...]:
        if kind is not ProgramKind.UPDATE:
            return ()
        index = {name: i for i, names in enumerate(update) for name in names}
        own = index[next(name for name in ops if name in index)]
        indices = {index[c] for name in ops if name in index for c in self.graph.op[name].control_inputs if c in index}
        return tuple(sorted(indices - {own}))
