"""The sets worth most to one accelerator, against all sets tried one by one."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import cost_graphs, cpu, gpu, graph

from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.solver.free.best_sets import best_sets
from partitioner.cost_graphs.solver.free.frontier import narrow_frontier
from partitioner.cost_graphs.solver.problem import MaxLoadProblem


def load_of(problem: MaxLoadProblem, chosen: set[int]) -> int:
    """Work of what is chosen, and each value that has items inside and outside."""
    moved = (value.cost for value in problem.values if 0 < len(chosen & set(value.items)) < len(value.items))
    return sum(problem.items[item].accelerator_cost for item in chosen) + sum(moved)


@given(of=cost_graphs(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_all_sets_tried_are_no_better(of, data: st.DataObject) -> None:
    problem = build_problem(of, (gpu(0), gpu(1), cpu())).problem
    size = len(problem.items)
    frontier = narrow_frontier(problem, 10**6)
    assert frontier is not None and sorted(step.item for step in frontier) == list(range(size))
    prices = np.array(data.draw(st.lists(st.integers(-3, 9), min_size=size, max_size=size)), dtype=np.int64)
    without = data.draw(st.sets(st.integers(0, size - 1)))
    limit = load_of(problem, set(range(size))) * data.draw(st.integers(0, 8)) // 8
    least = data.draw(st.integers(-5, 20))
    found = best_sets(frontier, prices, limit, least, 10**6, without)
    assert found.is_complete
    allowed = [
        item for item in range(size) if item not in without and not problem.accelerators <= problem.items[item].barred
    ]
    sets = [set(some) for count in range(len(allowed) + 1) for some in itertools.combinations(allowed, count)]
    tried = [(load_of(problem, some), int(prices[list(some)].sum()) if some else 0) for some in sets]
    for most_load in {load for load, _ in tried if load <= limit}:
        best = max(profit for load, profit in tried if load <= most_load)
        if best >= least:
            lighter = found.loads <= most_load
            assert lighter.any() and found.profits[lighter].max() == best
    for index, (load, profit) in enumerate(zip(found.loads, found.profits, strict=True)):
        chosen = found.items(index)
        assert (load_of(problem, set(chosen)), prices[chosen].sum()) == (load, profit)
        assert load <= limit and not without & set(chosen)


def test_wide_graphs_have_no_narrow_frontier() -> None:
    """A grid of 16 by 16: whatever the order, some 16 values are open half-way, and 2 ** 16 states are too many."""
    edges = [(16 * line + place, 16 * line + place + 16) for line in range(15) for place in range(16)]
    edges += [(16 * line + place, 16 * line + place + 1) for line in range(16) for place in range(15)]
    problem = build_problem(graph([1.0] * 256, edges), (gpu(0), gpu(1))).problem
    assert narrow_frontier(problem, 2**15) is None


def test_orders_of_attention_blocks_stay_narrow() -> None:
    """24 blocks, in any order in the file: a mask, the residual, a gradient and three branches are open at a time.

    The mask has items on both sides throughout, so there are three cases of it; each of the others is in or out.
    """
    edges: list[tuple[int, int]] = []
    count = itertools.count()
    mask, residual = next(count), next(count)
    for _ in range(24):
        heads = []
        for _ in range(3):
            chain = [residual, *itertools.islice(count, 4)]
            edges += itertools.pairwise(chain)
            heads.append(chain[-1])
        scores, gradient, output, end = itertools.islice(count, 4)
        edges += [(heads[0], scores), (heads[1], scores), (mask, scores), (residual, gradient), (heads[0], gradient)]
        edges += [(scores, output), (heads[2], output), (output, end), (residual, end), (gradient, end)]
        residual = end
    size = residual + 1
    shuffled = random.Random(0).sample(range(size), size)
    blocks = graph([1.0] * size, [(shuffled[source], shuffled[target]) for source, target in edges])
    frontier = narrow_frontier(build_problem(blocks, (gpu(0), gpu(1))).problem, 10**5)
    assert frontier is not None and max(step.num_after for step in frontier) <= 3 * 2**5


def test_where_too_many_sets_differ_the_promising_are_kept() -> None:
    costs = [1.0 + (7 * index % 13) / 13 for index in range(24)]
    problem = build_problem(graph(costs, []), (gpu(0), gpu(1))).problem
    frontier = narrow_frontier(problem, 1000)
    assert frontier is not None
    prices = np.array([item.accelerator_cost // 1000 for item in problem.items])
    limit = sum(item.accelerator_cost for item in problem.items) // 2
    few = best_sets(frontier, prices, limit, 0, 50)
    assert not few.is_complete and 0.95 * limit < few.loads[-1] <= limit
