"""The registry of formulas, one per op type, and the byte counts that most formulas share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from cost_models.specs import OpCost, OpSpec, TensorSpec

Formula = Callable[[OpSpec], OpCost]

_FORMULAS: dict[str, Formula] = {}

# What has been registered so far, by op type.
FORMULAS: Mapping[str, Formula] = MappingProxyType(_FORMULAS)


def register(*op_types: str) -> Callable[[Formula], Formula]:
    """Make the decorated function the formula of these op types.

    Raises:
        ValueError: An op type has a formula already.
    """

    def add(formula: Formula) -> Formula:
        for op_type in op_types:
            if op_type in _FORMULAS:
                raise ValueError(f"the op type {op_type!r} has a formula already")
            _FORMULAS[op_type] = formula
        return formula

    return add


def op_cost(op: OpSpec) -> OpCost:
    """FLOPs and bytes of an execution of `op`; those of `unknown` if its type has no formula.

    Raises:
        ValueError: The op's tensors or attributes do not fit its type.
    """
    formula = FORMULAS.get(op.type, unknown)
    try:
        return formula(op)
    except (IndexError, KeyError, ValueError) as error:
        shapes = [[tensor.shape for tensor in tensors] for tensors in (op.inputs, op.outputs)]
        raise ValueError(
            f"cannot cost {op.type} with input shapes {shapes[0]}, output shapes {shapes[1]} "
            f"and attributes {dict(op.attributes)}: {error}"
        ) from error


def unknown(op: OpSpec) -> OpCost:
    """The bytes of all inputs and outputs, no FLOPs, and `costed=False`."""
    return OpCost(read_bytes=total_bytes(op.inputs), written_bytes=total_bytes(op.outputs), costed=False)


def total_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Bytes of all the tensors."""
    return sum(tensor.size_bytes for tensor in tensors)


def streamed(op: OpSpec, flops: int = 0) -> OpCost:
    """The cost of `flops` on all inputs, read once, and all outputs, written once."""
    return OpCost(flops=flops, read_bytes=total_bytes(op.inputs), written_bytes=total_bytes(op.outputs))
