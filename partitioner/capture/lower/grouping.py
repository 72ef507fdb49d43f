"""The parameter of each optimizer variable, and the colocation group of every op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from networkx.utils import UnionFind

from partitioner.capture.lower.graph_def import READ
from partitioner.ir.graph_def import producer
from partitioner.ir.op_graph import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RawOp:
    """What grouping needs to know of an op.

    Attributes:
        inputs: Names of the tensors it reads.
        variables: Names of the variables whose handle it takes.
        differentiates: Name of the forward op that `_class` says it belongs to, or empty.
        is_scalar: Whether it outputs only scalars. A norm over all gradients or a flag that all are finite goes
            into every update, so it does not say where an update belongs.
    """

    name: str
    type: str
    phase: Phase
    inputs: tuple[str, ...]
    variables: tuple[str, ...]
    differentiates: str = ""
    is_scalar: bool = False


def parameter_of_slots(
    ops: Sequence[RawOp],
    gradient_of: Mapping[str, frozenset[str]],
    parameters: Iterable[str],
    slots: Iterable[str],
) -> dict[str, str]:
    """The parameter that each optimizer variable serves: only this parameter's gradient decides what is written to it.

    Optimizer variables that serve several parameters (the step count, the learning rate) are left out.

    Args:
        ops: The step, in a topological order.
        gradient_of: Parameters by the tensor that is their gradient.
        parameters: Names of the trained variables.
        slots: Names of the optimizer's variables.
    """
    candidates = set(slots)
    owners: dict[str, frozenset[str]] = {name: frozenset([name]) for name in parameters}
    reads: dict[str, frozenset[str]] = {}
    for op in ops:
        if op.phase is Phase.UPDATE:
            reads[op.name] = _parameters_read(op, reads, gradient_of, owners)
            for variable in candidates.intersection(op.variables) if op.type != READ else ():
                owners[variable] = owners.get(variable, frozenset()) | reads[op.name]
    return {name: next(iter(served)) for name, served in owners.items() if name in candidates and len(served) == 1}


def colocation_groups(
    ops: Sequence[RawOp], gradient_of: Mapping[str, frozenset[str]], parameter_of: Mapping[str, str]
) -> dict[str, str]:
    """The colocation group of every op that must share a device with another op, named after its first op.

    A group holds the ops on a variable; a backward op and the forward op it differentiates; the update of a parameter
    with its slots; and a constant with the only group that reads it.

    Args:
        ops: The step, in a topological order.
        gradient_of: Parameters by the tensor that is their gradient.
        parameter_of: Parameter by slot, and by itself for parameters.
    """
    sets: UnionFind = UnionFind(op.name for op in ops)
    names = {op.name for op in ops}
    keeper: dict[str, str] = {}  # a variable, or the parameter of a slot -> an op of its group
    for op in ops:
        for variable in op.variables:
            sets.union(keeper.setdefault(parameter_of.get(variable, variable), op.name), op.name)
        if op.differentiates in names:
            sets.union(op.differentiates, op.name)
    for op, parameter in _parameter_updated(ops, gradient_of, parameter_of).items():
        if parameter in keeper:
            sets.union(keeper[parameter], op)
    _adopt_constants(ops, sets)
    return _named_groups(ops, sets)


def _parameters_read(
    op: RawOp,
    reads: Mapping[str, frozenset[str]],
    gradient_of: Mapping[str, frozenset[str]],
    owners: Mapping[str, frozenset[str]],
) -> frozenset[str]:
    """Parameters whose gradient, value or slots an update op's result depends on, other than through scalars."""
    nothing: frozenset[str] = frozenset()
    if op.is_scalar:
        return nothing
    by_tensor = [gradient_of.get(name) or reads.get(producer(name), nothing) for name in op.inputs]
    return nothing.union(*by_tensor, *(owners.get(variable, nothing) for variable in op.variables))


def _parameter_updated(
    ops: Sequence[RawOp], gradient_of: Mapping[str, frozenset[str]], parameter_of: Mapping[str, str]
) -> dict[str, str]:
    """The only parameter that an update op serves: by what the op reads, else by its only reader."""
    owners = {name: frozenset([parameter]) for name, parameter in parameter_of.items()}
    updates = [op for op in ops if op.phase is Phase.UPDATE]
    serves: dict[str, frozenset[str]] = {}
    for op in updates:
        serves[op.name] = _parameters_read(op, serves, gradient_of, owners)
    unread = {op.name for op in updates if not serves[op.name]}
    several = frozenset(["", "/"])
    for op in reversed(updates):
        for name in map(producer, op.inputs):
            if name in unread:
                serves[name] |= serves[op.name] or several
    shared = {op.name for op in updates if op.name in unread and op.variables}
    return {
        name: next(iter(parameters))
        for name, parameters in serves.items()
        if len(parameters) == 1 and name not in shared
    }


def _adopt_constants(ops: Sequence[RawOp], sets: UnionFind) -> None:
    readers: dict[str, set[str]] = {}
    for op in reversed(ops):
        groups = readers.get(op.name, set())
        if not op.inputs and not op.variables and op.type != "Placeholder" and len(groups) == 1:
            sets.union(next(iter(groups)), op.name)
        for name in op.inputs:
            readers.setdefault(producer(name), set()).add(sets[op.name])


def _named_groups(ops: Sequence[RawOp], sets: UnionFind) -> dict[str, str]:
    first: dict[str, str] = {}
    size: dict[str, int] = {}
    for op in ops:
        root = sets[op.name]
        first.setdefault(root, op.name)
        size[root] = size.get(root, 0) + 1
    return {op.name: first[sets[op.name]] for op in ops if size[sets[op.name]] > 1}
