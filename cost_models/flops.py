"""What one execution of an op costs, from its type and shapes alone.

A multiply-add is 2 FLOPs. Bytes are what the op must read and write once: inputs plus outputs, unless its
formula knows better (a gather reads what it outputs, an identity moves nothing). Ops that run a function
(`While`, `If`, `PartitionedCall`) have no formula: their cost is that of their bodies, which a shape cannot
tell.
"""

from __future__ import annotations

# Importing a family registers its formulas.
import cost_models.formulas_contraction
import cost_models.formulas_elementwise
import cost_models.formulas_movement
import cost_models.formulas_reduction  # noqa: F401
from cost_models.registry import FORMULAS, register, total_bytes
from cost_models.specs import OpCost, OpSpec

__all__ = ["known_op_types", "op_cost", "register"]


def op_cost(op: OpSpec) -> OpCost:
    """FLOPs and bytes of one execution of `op`.

    An unknown op type gets the bytes of its inputs and outputs, no FLOPs, and `costed=False`.

    Raises:
        ValueError: The op's tensors or attributes are not what its type takes.
    """
    formula = FORMULAS.get(op.type)
    if formula is None:
        return OpCost(read_bytes=total_bytes(op.inputs), written_bytes=total_bytes(op.outputs), costed=False)
    try:
        return formula(op)
    except (IndexError, KeyError, ValueError) as error:
        shapes = [[tensor.shape for tensor in tensors] for tensors in (op.inputs, op.outputs)]
        raise ValueError(
            f"cannot cost {op.type} with input shapes {shapes[0]}, output shapes {shapes[1]} "
            f"and attributes {dict(op.attributes)}: {error}"
        ) from error


def known_op_types() -> frozenset[str]:
    """The op types that have a formula."""
    return frozenset(FORMULAS)
