"""The cost of an execution of an op, from its type and shapes alone.

A multiply-add is 2 FLOPs. Bytes are the bytes that the op must read and write once: inputs plus outputs, unless its
formula is more exact (a gather reads only what it outputs, an identity moves nothing). Ops that run functions (`While`,
`If`, `PartitionedCall`) cost the sum of the ops in these functions, so an `OpSpec` must list them.
"""

from __future__ import annotations

# Importing a family registers its formulas.
import cost_models.formulas_contraction
import cost_models.formulas_elementwise
import cost_models.formulas_functions
import cost_models.formulas_movement
import cost_models.formulas_reduction
import cost_models.formulas_transform  # noqa: F401
from cost_models.registry import FORMULAS, op_cost, register, unknown

__all__ = ["known_op_types", "op_cost", "register", "unknown"]


def known_op_types() -> frozenset[str]:
    """The op types that have a formula."""
    return frozenset(FORMULAS)
