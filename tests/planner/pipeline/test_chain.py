"""Milestones of a step, and what lies between them."""

from __future__ import annotations

from graphs import Builder, link, topology

from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.pipeline.chain import Chain
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.step_ops import StepOps


def chain_of(made: Builder) -> tuple[list[str], dict[str, list[str]]]:
    """The names of milestones, and of what is between each and the next."""
    costed = made.costed()
    items = coarsen(costed)
    ops = StepOps.of(costed, items, forward_order(costed, items))
    chain, names = Chain.of(ops), ops.names
    milestones = [names[index] for index in chain.milestones]
    between: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        if chain.is_between[index]:
            between.setdefault(milestones[chain.behind[index]], []).append(name)
    return milestones, between


def with_forks(skip_seconds: float) -> Builder:
    """x, two branches to d, two branches to g; and an op that needs x alone, and that g waits for."""
    made = Builder()
    made.add("x", 1.0, type="Placeholder")
    made.add("b", 3.0, "x")
    made.add("c", 2.0, "x")
    made.add("d", 1.0, "b", "c")
    made.add("e", 3.0, "d")
    made.add("f", 2.0, "d")
    made.add("skip", skip_seconds, "x")
    made.add("g", 1.0, "e", "f", "skip")
    return made


def test_what_all_paths_pass_is_a_milestone() -> None:
    milestones, between = chain_of(with_forks(skip_seconds=0.0))
    assert milestones == ["x", "d", "g"]
    assert between == {"x": ["b", "c"], "d": ["e", "f"]}


def test_an_op_that_takes_long_leaves_no_milestone_beside_it() -> None:
    milestones, between = chain_of(with_forks(skip_seconds=4.0))
    assert milestones == ["x", "g"]
    assert between == {"x": ["b", "c", "d", "e", "f", "skip"]}


def test_an_op_that_takes_hardly_any_time_does_not_count() -> None:
    """Of 13 s, 0.3 % are 0.039 s."""
    milestones, between = chain_of(with_forks(skip_seconds=0.03125))
    assert milestones == ["x", "d", "g"]
    assert between == {"x": ["b", "c"], "d": ["e", "f"]}


def test_what_depends_on_no_row_is_not_of_the_chain() -> None:
    made = Builder()
    made.add("table", 9.0)
    made.add("x", 1.0, type="Placeholder")
    made.add("y", 1.0, "x", "table")
    assert chain_of(made) == (["x", "y"], {})


def test_ops_that_take_no_time_are_not_looked_at() -> None:
    """Whoever reads a reshape waits for its source, and for as many bytes as the reshape has: 0.5 + 8 / 16 s."""
    made = Builder()
    made.add("x", 1.0, type="Placeholder", layer="a")
    made.add("shaped", 0.0, "x", layer="a", size_bytes=8)
    made.add("constant", 0.0, layer="b")
    made.add("y", 1.0, "shaped", "constant", layer="b")
    made.add("sum", 0.0, "x", "y", layer="b", size_bytes=4)
    made.add("z", 1.0, "sum", layer="c")
    costed = made.costed(topology(2, wire=link(0.5, 16.0)))
    items = coarsen(costed)
    ops = StepOps.of(costed, items, forward_order(costed, items))
    sources = {
        name: [(ops.names[at], takes) for at, takes in waits]
        for name, waits in zip(ops.names, ops.sources, strict=True)
    }
    assert sources == {"x": [], "y": [("x", 1.0)], "sum": [("x", 16.5), ("y", 16.5)], "z": [("sum", 0.75)]}
