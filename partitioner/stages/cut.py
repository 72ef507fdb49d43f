"""Cut a placed step into stage programs.

What each op is needed for, its role, is known; see `roles`. Forward ops form stages: maximal sets on one device that
need only stages before them. Backward ops follow the forward op they differentiate, and move to an earlier stage where
they would wait for one (the sum of the gradients of a skip connection names whichever stage it likes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Op, Phase
from partitioner.ir.stage_programs import ProgramKind, StageProgram, StagePrograms
from partitioner.stages.across_microbatches import gathered, staged_states
from partitioner.stages.pieces import pieces
from partitioner.stages.roles import Role, Roles

# A sum of gradients is linear: it may as well add what was summed over the microbatches before.
_SUM = "AddN"
# On CPUs TensorFlow takes oneDNN's kernels for the gradients of these only where it finds the op itself in the same
# graph: in a program of its own the gradient of a pooling took 17 times as long, and running the op again costs less.
_RERUN_ON_CPUS = ("LRN", "MaxPool", "MaxPool3D")


def cut(
    roles: Roles,
    placement: Mapping[str, str],
    *,
    devices: Collection[str] | None = None,
    recompute: Collection[int] | None = (),
) -> StagePrograms:
    """The stage programs of a placed step.

    Args:
        roles: The step.
        placement: Device of every op.
        devices: Devices that may hold a stage; an op placed elsewhere (on the host of a GPU) goes with its readers.
        recompute: Stages whose backward program reruns their forward ops; None for all of them.

    Raises:
        UsageError: The step cannot be cut: one piece of state is used by several stages, or an update needs more of the
            forward pass than its gradients.
    """
    return _Cut(roles, placement, devices, recompute).programs()


class _Cut:
    def __init__(
        self,
        roles: Roles,
        placement: Mapping[str, str],
        devices: Collection[str] | None,
        recompute: Collection[int] | None,
    ) -> None:
        self.roles, self.graph, self.ops, self.inputs = roles, roles.graph, roles.ops, roles.inputs
        self.role = dict(roles.role)
        self.device = self._stage_devices(placement, devices)
        self.stages, self.stage = self._forward_stages()
        self._place_backward()
        self._delay_sums()
        self.relocated = {
            name: self.stages[stage]
            for name, stage in self.stage.items()
            if self.stages[stage] != placement[name] and (devices is None or placement[name] in devices)
        }
        self.recomputed = frozenset(range(len(self.stages)) if recompute is None else recompute)

    def producer(self, tensor: str) -> str:
        return self.graph.tensor[tensor].producer

    def _stage_devices(self, placement: Mapping[str, str], devices: Collection[str] | None) -> dict[str, str]:
        """Device that decides the stage of each op: its own, or that of its readers where it holds no stages."""
        known = {op.name: placement[op.name] for op in self.ops if devices is None or placement[op.name] in devices}
        for op in reversed(self.ops):
            if op.name not in known:
                readers = (r for name in op.outputs for r in self.graph.consumers[name] if r in known)
                if (reader := next(readers, None)) is not None:
                    known[op.name] = known[reader]
        for op in self.ops:
            if op.name not in known:
                sources = (self.producer(name) for name in op.inputs)
                known[op.name] = next((known[s] for s in sources if s in known), placement[op.name])
        return known

    # -- stages ----------------------------------------------------------------------------------------------------

    def _forward_stages(self) -> tuple[tuple[str, ...], dict[str, int]]:
        forward = [op for op in self.ops if self.role[op.name] is Role.FORWARD]
        # What is computed of forward values for the backward pass alone stays with these, where they lie together.
        for op in forward:
            if op.phase is not Phase.FORWARD:
                sources = [
                    s for name in self.inputs[op.name] if self.role.get(s := self.producer(name)) is Role.FORWARD
                ]
                if len(devices := {self.device[source] for source in sources}) == 1:
                    self.device[op.name] = devices.pop()
        found = self._pieces(forward, late=self._of_state_alone(forward))
        stages = tuple(self.device[ops[0]] for ops in found)
        return stages, {name: index for index, ops in enumerate(found) for name in ops}

    def _of_state_alone(self, forward: Sequence[Op]) -> set[str]:
        """Ops that compute of carried state and no rows: the decayed moving average, to which a mean is added."""
        found: set[str] = set()
        for op in forward:
            sources = [*map(self.producer, self.inputs[op.name]), *(c for c in op.control_inputs if c in self.role)]
            if all(source in found or self.role[source] in (Role.COPIED, Role.ONCE) for source in sources):
                found.add(op.name)
        return found

    def _pieces(self, ops: Sequence[Op], late: Collection[str] = ()) -> list[list[str]]:
        known = {op.name for op in ops}
        needs = {
            op.name: [s for s in (*map(self.producer, self.inputs[op.name]), *op.control_inputs) if s in known]
            for op in ops
        }
        return pieces([op.name for op in ops], needs, self.device, late)

    def _place_backward(self) -> None:
        """A stage for every backward op: that of the op it differentiates, at latest that of what it reads."""
        backward = [op for op in self.ops if self.role[op.name] is Role.BACKWARD]
        last = len(self.stages) - 1
        wanted = {op.name: self.stage[op.differentiates] for op in backward if op.differentiates in self.stage}
        for op in reversed(backward):
            if op.name not in wanted:
                readers = [wanted[r] for name in op.outputs for r in self.graph.consumers[name] if r in wanted]
                own = [s for s in range(last + 1) if self.stages[s] == self.device[op.name]]
                wanted[op.name] = max(readers, default=max(own, default=last))
        for op in backward:
            sources = [self.producer(name) for name in self.inputs[op.name] if name != self.roles.seed]
            limits = [self.stage[s] for s in sources if self.role[s] is Role.BACKWARD]
            self.stage[op.name] = min([wanted[op.name], *limits])

    def _delay_sums(self) -> None:
        """Make a sum of gradients of several stages an update op: each stage sums its own part over microbatches."""
        last_uses = {name: self.graph.consumers[name] for name in self.graph.tensor}
        wanted = set(self.roles.results)
        for op in reversed(self.ops):
            if self.role[op.name] is not Role.BACKWARD or op.type != _SUM:
                continue
            sources = [self.producer(name) for name in self.inputs[op.name]]
            readers = [self.role[r] for name in op.outputs for r in last_uses[name] if r in self.roles.role]
            is_gradient = all(role is Role.UPDATE for role in readers) and (readers or wanted.intersection(op.outputs))
            if is_gradient and len({self.stage.get(s) for s in sources}) > 1:
                self.role[op.name] = Role.UPDATE
                del self.stage[op.name]

    # -- programs --------------------------------------------------------------------------------------------------

    def programs(self) -> StagePrograms:
        once = self._pieces([op for op in self.ops if self.role[op.name] is Role.ONCE])
        update = self._pieces([op for op in self.ops if self.role[op.name] is Role.UPDATE])
        bodies: list[tuple[ProgramKind, int, str, list[str]]] = []
        bodies += [(ProgramKind.ONCE, i, self.device[ops[0]], ops) for i, ops in enumerate(once)]
        for kind, roles in self._repeated_roles().items():
            by_stage: list[list[str]] = [[] for _ in self.stages]
            for op in self.ops:
                if self.role[op.name] in roles:
                    by_stage[self.stage[op.name]].append(op.name)
            if kind is ProgramKind.FORWARD or any(by_stage):
                bodies += [(kind, s, self.stages[s], ops) for s, ops in enumerate(by_stage)]
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
            update=by_kind[ProgramKind.UPDATE],
            gathered=gathered(self.roles, self.role, by_kind[ProgramKind.UPDATE]),
            states=tuple(staged_states(self.roles, self.role, self.stage)),
            recomputed=self.recomputed,
            aliases=self.roles.aliases,
            relocated=self.relocated,
        )

    def _repeated_roles(self) -> dict[ProgramKind, set[Role]]:
        """What the programs of a microbatch run. Nothing comes between forward and backward of a single stage."""
        if len(self.stages) == 1 and not self.recomputed:
            return {ProgramKind.FORWARD: {Role.FORWARD, Role.BACKWARD}}
        return {ProgramKind.FORWARD: {Role.FORWARD}, ProgramKind.BACKWARD: {Role.BACKWARD}}

    def _body(self, kind: ProgramKind, stage: int, ops: Sequence[str]) -> list[str]:
        """The ops of a program with copied constants and the forward ops it reruns."""
        body = set(ops)
        stack = list(ops)
        carried = {state.read for state in self.roles.states}
        while stack:
            for name in self.inputs[stack.pop()]:
                source = self.producer(name)
                if source in body or name == self.roles.seed or name in carried:
                    continue
                reruns = kind is ProgramKind.BACKWARD and self._is_rerun(self.graph.op[source], stage)
                if reruns or self.role[source] is Role.COPIED:
                    body.add(source)
                    stack.append(source)
        return [op.name for op in self.ops if op.name in body]

    def _is_rerun(self, op: Op, stage: int) -> bool:
        """Whether the backward program of a stage runs an op again rather than being given what it made."""
        if self.role[op.name] is not Role.FORWARD or self.stage[op.name] != stage or op.stateful:
            return False
        if op.type in _RERUN_ON_CPUS and DeviceName.parse(self.stages[stage]).type == "CPU":
            return True
        return stage in self.recomputed

    def _needed(self, ops: Sequence[str]) -> list[str]:
        body = set(ops)
        carried = {state.read for state in self.roles.states}
        return list(
            dict.fromkeys(
                name
                for one in ops
                for name in self.inputs[one]
                if self.producer(name) not in body or name == self.roles.seed or (name in carried and one not in body)
            )
        )

    def _waits_for(self, ops: Sequence[str], kind: ProgramKind, update: Sequence[Sequence[str]]) -> tuple[int, ...]:
        if kind is not ProgramKind.UPDATE:
            return ()
        index = {name: i for i, names in enumerate(update) for name in names}
        own = index[next(name for name in ops if name in index)]
        found = {index[c] for name in ops if name in index for c in self.graph.op[name].control_inputs if c in index}
        return tuple(sorted(found - {own}))
