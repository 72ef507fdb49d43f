"""Coarser problems: light items that are expensive to separate are merged until few are left."""

from __future__ import annotations

from partitioner.cost_graphs.solver.problem import MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import Contracted, merge


def coarsen(problem: MaxLoadProblem, num_items: int, heaviest: int) -> Contracted:
    """Merge down to `num_items`, if possible without an item above the cost `heaviest` on an accelerator."""
    coarse = Contracted(problem=problem, label=tuple(range(len(problem.items))))
    while len(coarse.problem.items) > num_items:
        pairs = _best_pairs(coarse.problem, len(coarse.problem.items) - num_items, heaviest)
        if not pairs:
            break
        step = merge(coarse.problem, [pairs.get(item, item) for item in range(len(coarse.problem.items))])
        coarse = Contracted(problem=step.problem, label=tuple(step.label[label] for label in coarse.label))
    return coarse


def _best_pairs(problem: MaxLoadProblem, most: int, heaviest: int) -> dict[int, int]:
    """Disjoint pairs (second -> first), the best sixth of all, by the cost of separating them over their own cost."""
    apart: dict[tuple[int, int], float] = {}
    for value in problem.values:
        share = value.cost / (len(value.items) - 1)
        for number, a in enumerate(value.items):
            for b in value.items[number + 1 :]:
                apart[a, b] = apart.get((a, b), 0.0) + share
    weight = [item.accelerator_cost for item in problem.items]
    light = 1e-4 * heaviest
    scored = sorted(
        (-cost / ((weight[a] + light) * (weight[b] + light)) ** 0.5, a, b)
        for (a, b), cost in apart.items()
        if weight[a] + weight[b] <= heaviest and problem.items[a].barred == problem.items[b].barred
    )
    pairs: dict[int, int] = {}
    used: set[int] = set()
    for _, a, b in scored:
        if len(pairs) >= max(1, min(most, len(scored) // 6)):
            break
        if a not in used and b not in used:
            pairs[b] = a
            used |= {a, b}
    return pairs
