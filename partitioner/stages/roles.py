"""The role of every op of a step: whether it runs once, for each microbatch, or after all microbatches.

*Copied* ops (constants and small tensors computed from them) go into every program that reads them. Ops that run *once*
a step depend on no row of the batch: reads of parameters, casts of these. *Forward* and *backward* ops run for each
microbatch. *Update* ops need the gradients of all microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from partitioner.errors import UsageError
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.stage_programs import CarriedState
from partitioner.spelling import argument

READ, WRITE = "ReadVariableOp", "AssignVariableOp"
_WRITES = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")
# A computed constant of more elements is computed once a step, not in every program.
_MAX_COPIED_ELEMENTS = 1024
_INDEX_DTYPES = ("int32", "int64")


class Role(Enum):
    """When an op runs. See the module's text."""

    ARGUMENT = auto()
    COPIED = auto()
    ONCE = auto()
    FORWARD = auto()
    BACKWARD = auto()
    UPDATE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The ops of a step that are needed, and when they run.

    Attributes:
        graph: The step.
        results: Tensors the caller needs of every microbatch.
        sparse_gradients: (values, indices[, dense shape]) tensors of each sparse gradient.
        seed: The tensor that the gradients start from, given to each microbatch as an argument.
        states: Variables that forward ops write; their stages are not decided yet.
        aliases: For reads of a variable after a write, the tensor that was written.
        ops: Those that are needed, in graph order.
        inputs: For each of them, the tensors it reads, each once; aliases are followed.
        role: When each runs.
    """

    graph: OpGraph
    results: Sequence[str]
    sparse_gradients: Sequence[Sequence[str]]
    seed: str
    states: Sequence[CarriedState]
    aliases: Mapping[str, str]
    ops: Sequence[Op]
    inputs: Mapping[str, tuple[str, ...]]
    role: Mapping[str, Role]


def find_roles(
    graph: OpGraph,
    *,
    results: Iterable[str],
    sparse_gradients: Iterable[Sequence[str]] = (),
    roots: Sequence[str] = (),
    seed: str = "",
) -> Roles:
    """The roles of a step's ops.

    Args:
        graph: The step.
        results: Tensors the caller needs: outputs and loss of every microbatch, gradients.
        sparse_gradients: (values, indices[, dense shape]) tensors of each sparse gradient.
        roots: Ops to run besides those the results need.
        seed: The tensor that the gradients start from, given to each microbatch as an argument.

    Raises:
        UsageError: State that the forward pass writes cannot be carried from one microbatch to the next.
    """
    return _Finder(graph, results, sparse_gradients, roots, seed).roles()


class _Finder:
    def __init__(
        self,
        graph: OpGraph,
        results: Iterable[str],
        sparse_gradients: Iterable[Sequence[str]],
        roots: Sequence[str],
        seed: str,
    ) -> None:
        self.graph, self.seed, self.results, self.roots = graph, seed, list(dict.fromkeys(results)), roots
        self.sparse = [tuple(parts) for parts in sparse_gradients]
        self.states, self.aliases, self.writes = self._find_states()
        self.inputs = {
            op.name: tuple(dict.fromkeys(self.aliases.get(name, name) for name in op.inputs)) for op in graph.ops
        }
        live = self._find_live()
        self.ops = [op for op in graph.ops if op.name in live]

    def roles(self) -> Roles:
        return Roles(
            graph=self.graph,
            results=self.results,
            sparse_gradients=self.sparse,
            seed=self.seed,
            states=self.states,
            aliases=self.aliases,
            ops=self.ops,
            inputs=self.inputs,
            role=self._find_roles(),
        )

    def producer(self, tensor: str) -> str:
        return self.graph.tensor[tensor].producer

    def _find_states(self) -> tuple[list[CarriedState], dict[str, str], set[str]]:
        """Variables that forward ops write, the tensors that their later reads return, and the ops that write them."""
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
                        help=argument("microbatches", 1),
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
        """The needed ops. A state is carried if the step has side effects, or if a needed op reads it."""
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
                stack += [self.producer(tensor) for tensor in self.inputs[op.name] if tensor != self.seed]
                stack += op.control_inputs
            needed = [s for s in self.states if self.roots or (s.read and self.producer(s.read) in live)]
            if needed == carried:
                self.states = carried
                return live
            stack = [self.producer(name) for state in needed for name in (state.written, state.read) if name]
            carried = needed

    def _find_roles(self) -> dict[str, Role]:
        carried = {state.read for state in self.states if state.read}
        role: dict[str, Role] = {}
        varies: set[str] = set(carried) | {self.seed}
        for op in self.ops:
            if op.phase is Phase.UPDATE:
                role[op.name] = Role.UPDATE
                continue
            inputs = self.inputs[op.name]
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
        """Whether a backward op is arithmetic on shapes: its few integers are kept instead of its inputs."""
        if Role.BACKWARD in roles or self.seed in op.inputs or not op.outputs or op.stateful:
            return False
        specs = [self.graph.tensor[name].spec for name in op.outputs]
        return all(spec.dtype in _INDEX_DTYPES and len(spec.shape) <= 1 for spec in specs) and all(
            self.graph.tensor[name].spec.num_elements <= _MAX_COPIED_ELEMENTS for name in op.outputs
        )
