"""Cut a placed step into stage programs.

An op belongs to one of five roles. *Copied* ops (constants and what little is computed of them) go into every program
that reads them. Ops that run *once* a step depend on no row of the batch: reads of parameters, casts of these.
*Forward* ops form stages: maximal sets on one device that need only stages before them. *Backward* ops follow the
forward op they differentiate, and move to an earlier stage where they would wait for one (the sum of the gradients of
a skip connection names whichever stage it likes). *Update* ops need the gradients of all microbatches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.stage_programs import CarriedState, Gather, ProgramKind, StageProgram, StagePrograms
from partitioner.stages.pieces import pieces

READ, WRITE = "ReadVariableOp", "AssignVariableOp"
_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")
# A sum of gradients is linear: it may as well add what was summed over the microbatches before.
_SUM = "AddN"
# Beyond this many elements a computed constant is computed once a step and handed on, rather than in every program.
_MAX_COPIED_ELEMENTS = 1024
_INDEX_DTYPES = ("int32", "int64")
# On CPUs TensorFlow takes oneDNN's kernels for the gradients of these only where it finds the op itself in the same
# graph: in a program of its own the gradient of a pooling took 17 times as long, and running the op again costs less.
_RERUN_ON_CPUS = ("LRN", "MaxPool", "MaxPool3D")


class Role(Enum):
    """When an op runs. See the module's text."""

    ARGUMENT = auto()
    COPIED = auto()
    ONCE = auto()
    FORWARD = auto()
    BACKWARD = auto()
    UPDATE = auto()


def cut(
    graph: OpGraph,
    placement: Mapping[str, str],
    *,
    results: Sequence[str],
    sparse_gradients: Iterable[Sequence[str]] = (),
    roots: Sequence[str] = (),
    seed: str = "",
    devices: Collection[str] | None = None,
    recompute: Collection[int] | None = (),
) -> StagePrograms:
    """The stage programs of a placed step.

    Args:
        graph: The step.
        placement: Device of every op.
        results: Tensors the caller needs: outputs and loss of every microbatch, gradients.
        sparse_gradients: (values, indices[, dense shape]) tensors of each sparse gradient.
        roots: Ops to run besides those the results need.
        seed: The tensor that the gradients start from, given to each microbatch as an argument.
        devices: Devices that may hold a stage; an op placed elsewhere (on the host of a GPU) goes with its readers.
        recompute: Stages whose backward program reruns their forward ops; None for all of them.

    Raises:
        UsageError: The step cannot be cut: one piece of state is used by several stages, or an update needs more of the
            forward pass than its gradients.
    """
    return _Cut(graph, placement, results, sparse_gradients, roots, seed, devices, recompute).programs()


class _Cut:
    def __init__(
        self,
        graph: OpGraph,
        placement: Mapping[str, str],
        results: Sequence[str],
        sparse_gradients: Iterable[Sequence[str]],
        roots: Sequence[str],
        seed: str,
        devices: Collection[str] | None,
        recompute: Collection[int] | None,
    ) -> None:
        self.graph, self.seed, self.results, self.roots = graph, seed, list(dict.fromkeys(results)), roots
        self.sparse = [tuple(parts) for parts in sparse_gradients]
        self.states, self.aliases, self.writes = self._find_states()
        self.live = self._find_live()
        self.ops = [op for op in graph.ops if op.name in self.live]
        self.device = self._stage_devices(placement, devices)
        self.role = self._find_roles()
        self.stages, self.stage = self._forward_stages()
        self._place_backward()
        self._delay_sums()
        self.relocated = {
            name: self.stages[stage]
            for name, stage in self.stage.items()
            if self.stages[stage] != placement[name] and (devices is None or placement[name] in devices)
        }
        self.recomputed = frozenset(range(len(self.stages)) if recompute is None else recompute)

    def inputs(self, op: Op) -> tuple[str, ...]:
        """Tensors an op reads, each once; a variable read after it was written is what was written."""
        return tuple(dict.fromkeys(self.aliases.get(name, name) for name in op.inputs))

    def producer(self, tensor: str) -> str:
        return self.graph.tensor[tensor].producer

    # -- what there is ---------------------------------------------------------------------------------------------

    def _find_states(self) -> tuple[list[CarriedState], dict[str, str], set[str]]:
        """Variables that forward ops write, what their later reads stand for, and the ops that write them."""
        forward = [op for op in self.graph.ops if op.phase is not Phase.UPDATE]
        written = {v for op in forward if op.type.startswith(_WRITES) for v in op.variables}
        read: dict[str, str] = {}
        value: dict[str, str] = {}
        aliases: dict[str, str] = {}
        writes: set[str] = set()
        for op in forward:
            for variable in written.intersection(op.variables):
                if op.type == WRITE:
                    value[variable] = aliases.get(op.inputs[0], op.inputs[0])
                    writes.add(op.name)
                elif op.type != READ:
                    raise UsageError(
                        f"microbatches: the op {op.name} ({op.type}) uses the variable {variable}, which the forward "
                        "pass writes, so it cannot be carried from one microbatch to the next",
                        notes=[f"layer: {op.layer}"] if op.layer else [],
                        help="--microbatches 1",
                    )
                elif variable in value:
                    aliases[op.outputs[0]] = value[variable]
                elif variable in read:
                    aliases[op.outputs[0]] = read[variable]
                else:
                    read[variable] = op.outputs[0]
        states = [
            CarriedState(variable=variable, stage=-1, read=read.get(variable, ""), written=value[variable])
            for variable in sorted(written)
        ]
        return states, aliases, writes

    def _find_live(self) -> set[str]:
        """Ops that are needed. A state is carried if the step shall change it, or if an op that is needed reads it."""
        live: set[str] = set()
        stack = [self.producer(self.aliases.get(name, name)) for name in self.results]
        stack += self.roots
        carried: list[CarriedState] = []
        while True:
            while stack:
                name = stack.pop()
                if name in live or name in self.writes:
                    continue
                live.add(name)
                op = self.graph.op[name]
                stack += [self.producer(tensor) for tensor in self.inputs(op) if tensor != self.seed]
                stack += op.control_inputs
            found = [s for s in self.states if self.roots or (s.read and self.producer(s.read) in live)]
            if found == carried:
                self.states = carried
                return live
            stack = [self.producer(name) for state in found for name in (state.written, state.read) if name]
            carried = found

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

    # -- roles -----------------------------------------------------------------------------------------------------

    def _find_roles(self) -> dict[str, Role]:
        carried = {state.read for state in self.states if state.read}
        role: dict[str, Role] = {}
        varies: set[str] = set(carried) | {self.seed}
        for op in self.ops:
            if op.phase is Phase.UPDATE:
                role[op.name] = Role.UPDATE
                continue
            inputs = self.inputs(op)
            roles = {role[self.producer(name)] for name in inputs if name != self.seed}
            if op.type == "Placeholder":
                role[op.name] = Role.ARGUMENT
            elif self._is_copied(op, roles, inputs):
                role[op.name] = Role.COPIED
            elif (roles <= {Role.COPIED, Role.ONCE} and not varies.intersection(inputs)) and (
                op.type == READ or not op.stateful
            ):
                role[op.name] = Role.ONCE
            elif op.phase is Phase.FORWARD or self._is_index_of_forward(op, roles):
                role[op.name] = Role.FORWARD
            else:
                role[op.name] = Role.BACKWARD
        return role

    def _is_copied(self, op: Op, roles: set[Role], inputs: Sequence[str]) -> bool:
        if op.variables or op.stateful or self.seed in inputs or not roles <= {Role.COPIED}:
            return False
        if any(name in self.results for name in op.outputs):
            return False
        if op.type == "Const":
            return True
        sizes = [self.graph.tensor[name].spec.num_elements for name in op.outputs]
        return bool(inputs) and bool(sizes) and sum(sizes) <= _MAX_COPIED_ELEMENTS

    def _is_index_of_forward(self, op: Op, roles: set[Role]) -> bool:
        """Whether a backward op is arithmetic on shapes: its few integers are kept, not what they tell of."""
        if Role.BACKWARD in roles or self.seed in op.inputs or not op.outputs or op.stateful:
            return False
        specs = [self.graph.tensor[name].spec for name in op.outputs]
        return all(spec.dtype in _INDEX_DTYPES and len(spec.shape) <= 1 for spec in specs) and all(
            self.graph.tensor[name].spec.num_elements <= _MAX_COPIED_ELEMENTS for name in op.outputs
        )

    # -- stages ----------------------------------------------------------------------------------------------------

    def _forward_stages(self) -> tuple[tuple[str, ...], dict[str, int]]:
        forward = [op for op in self.ops if self.role[op.name] is Role.FORWARD]
        # What is computed of forward values for the backward pass alone stays with these, where they lie together.
        for op in forward:
            if op.phase is not Phase.FORWARD:
                sources = [s for name in self.inputs(op) if self.role.get(s := self.producer(name)) is Role.FORWARD]
                if len(devices := {self.device[source] for source in sources}) == 1:
                    self.device[op.name] = devices.pop()
        found = self._pieces(forward, late=self._of_state_alone(forward))
        stages = tuple(self.device[ops[0]] for ops in found)
        return stages, {name: index for index, ops in enumerate(found) for name in ops}

    def _of_state_alone(self, forward: Sequence[Op]) -> set[str]:
        """Ops that compute of carried state and no rows: the decayed moving average, to which a mean is added."""
        found: set[str] = set()
        for op in forward:
            sources = [*map(self.producer, self.inputs(op)), *(c for c in op.control_inputs if c in self.role)]
            if all(source in found or self.role[source] in (Role.COPIED, Role.ONCE) for source in sources):
                found.add(op.name)
        return found

    def _pieces(self, ops: Sequence[Op], late: Collection[str] = ()) -> list[list[str]]:
        known = {op.name for op in ops}
        needs = {
            op.name: [s for s in (*map(self.producer, self.inputs(op)), *op.control_inputs) if s in known] for op in ops
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
            sources = [self.producer(name) for name in self.inputs(op) if name != self.seed]
            limits = [self.stage[s] for s in sources if self.role[s] is Role.BACKWARD]
            self.stage[op.name] = min([wanted[op.name], *limits])

    def _delay_sums(self) -> None:
        """Make a sum of gradients of several stages an update op: each stage sums its own part over microbatches."""
        last_uses = {name: self.graph.consumers[name] for name in self.graph.tensor}
        wanted = set(self.results)
        for op in reversed(self.ops):
            if self.role[op.name] is not Role.BACKWARD or op.type != _SUM:
                continue
            sources = [self.producer(name) for name in self.inputs(op)]
            readers = [self.role[r] for name in op.outputs for r in last_uses[name] if r in self.live]
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
        wanted = {*self.results, *(n for names in needed for n in names)}
        wanted |= {name for state in self.states for name in (state.read, state.written)}
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
                    if name in wanted and name not in self.aliases
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
            gathered=self._gathered(by_kind),
            states=tuple(self._staged_states()),
            recomputed=self.recomputed,
            aliases=self.aliases,
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
        carried = {state.read for state in self.states}
        while stack:
            for name in self.inputs(self.graph.op[stack.pop()]):
                source = self.producer(name)
                if source in body or name == self.seed or name in carried:
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
        carried = {state.read for state in self.states}
        return list(
            dict.fromkeys(
                name
                for one in ops
                for name in self.inputs(self.graph.op[one])
                if self.producer(name) not in body or name == self.seed or (name in carried and one not in body)
            )
        )

    def _waits_for(self, ops: Sequence[str], kind: ProgramKind, update: Sequence[Sequence[str]]) -> tuple[int, ...]:
        if kind is not ProgramKind.UPDATE:
            return ()
        index = {name: i for i, names in enumerate(update) for name in names}
        own = index[next(name for name in ops if name in index)]
        found = {index[c] for name in ops if name in index for c in self.graph.op[name].control_inputs if c in index}
        return tuple(sorted(found - {own}))

    def _gathered(self, by_kind: Mapping[ProgramKind, Sequence[StageProgram]]) -> dict[str, Gather]:
        """How update programs, and the caller, get what microbatches computed."""
        sparse: dict[str, Gather] = {}
        for values, indices, *shape in self.sparse:
            # Rows that every microbatch looks up (positions in a sentence) add up like a dense gradient.
            same = self.role[self.producer(indices)] in (Role.COPIED, Role.ONCE)
            sparse |= {values: Gather.SUM if same else Gather.CONCAT, indices: Gather.CONCAT}
            sparse |= dict.fromkeys(shape, Gather.FIRST)
        found: dict[str, Gather] = {}
        wanted = [name for program in by_kind[ProgramKind.UPDATE] for name in program.inputs]
        for name in dict.fromkeys([*wanted, *self.results]):
            role = self.role[self.producer(name)]
            if role is Role.BACKWARD:
                found[name] = sparse.get(name, Gather.SUM)
            elif name in sparse and role not in (Role.COPIED, Role.ONCE):
                found[name] = sparse[name]
            elif role in (Role.FORWARD, Role.ARGUMENT) and name in wanted:
                op = self.graph.op[self.producer(name)]
                raise UsageError(
                    f"microbatches: the update needs {name} ({op.type}) of the forward pass, which has one value per "
                    "microbatch",
                    help="--microbatches 1",
                )
        return found

    def _staged_states(self) -> Iterable[CarriedState]:
        for state in self.states:
            users = {
                self.stage[r]
                for r in (self.graph.consumers[state.read] if state.read else ())
                if self.role.get(r) is Role.FORWARD
            }
            maker = self.stage.get(self.producer(state.written), -1)
            if users and maker > min(users):
                layers = sorted({self.graph.op[r].layer for r in self.graph.consumers[state.read]})
                raise UsageError(
                    f"microbatches: the variable {state.variable} is read by stage {min(users)} and written by stage "
                    f"{maker}, so a microbatch would wait until the one before has passed both",
                    notes=[f"layers: {', '.join(layers)}"],
                    help="pin these layers to one device, next to each other, or --microbatches 1",
                )
            yield CarriedState(
                variable=state.variable, stage=max([maker, *users]), read=state.read, written=state.written
            )
