"""What one execution of an op costs, from its type and shapes alone.

A multiply-add is 2 FLOPs. Bytes are what the op must read and write once: inputs plus outputs, unless its
formula knows better (a gather reads what it outputs, an identity moves nothing). Ops that run functions
(`While`, `If`, `PartitionedCall`) cost what the ops in these cost, so whoever asks must say which they are.
"""

from __future__ import annotations

# Importing a family registers its formulas.
import cost_models.formulas_contraction
import cost_models.formulas_elementwise
import cost_models.formulas_functions
import cost_models.formulas_movement
import cost_models.formulas_reduction  # noqa: F401
from cost_models.registry import FORMULAS, op_cost, register, unknown

__all__ = ["known_op_types", "op_cost", "register", "unknown"]


def known_op_types() -> frozenset[str]:
    """The op types that have a formula."""
    return frozenset(FORMULAS)
