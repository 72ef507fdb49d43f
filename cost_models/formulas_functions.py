"""Ops that run functions: loops, conditionals, calls. They cost the sum of the ops inside.

Without its functions, such an op has only its bytes and counts as not costed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cost_models.registry import op_cost, register, unknown
from cost_models.specs import CostPart, FunctionRun, OpCost, OpSpec


@register("While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall")
def _all(op: OpSpec) -> OpCost:
    """Every function as often as it runs: a loop of n trips runs its body n times and its condition n + 1 times.

    Arguments and results are passed, not copied.
    """
    return cost_of(op.runs) if op.runs else unknown(op)


@register("If", "StatelessIf", "Case", "StatelessCase")
def _most_expensive_branch(op: OpSpec) -> OpCost:
    """The most expensive branch, because the branch taken depends on values; a byte counts as a FLOP."""
    branches = [cost_of([run]) for run in op.runs]
    return max(branches, key=lambda cost: cost.flops + cost.moved_bytes) if branches else unknown(op)


def cost_of(runs: Iterable[FunctionRun]) -> OpCost:
    """The cost of all runs together; ops that do nothing are left out of its parts."""
    times: Counter[tuple[str, str, OpCost]] = Counter()
    for run in runs:
        for op in run.ops:
            cost = op_cost(op)
            if cost.flops or cost.moved_bytes or not cost.costed:
                times[op.type, op.compute_dtype, cost] += run.times
    parts = tuple(
        CostPart(type=op_type, dtype=dtype, cost=cost, times=count)
        for (op_type, dtype, cost), count in times.items()
        if count
    )
    return OpCost(
        flops=sum(part.times * part.cost.flops for part in parts),
        read_bytes=sum(part.times * part.cost.read_bytes for part in parts),
        written_bytes=sum(part.times * part.cost.written_bytes for part in parts),
        costed=all(part.cost.costed for part in parts),
        parts=parts,
    )
