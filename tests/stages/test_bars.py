"""Bars of a device that runs its ops as one graph, merged by hand, and what must hold of any."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.op_graph import Phase
from partitioner.stages.bars import Run, bars_of_runs

F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE


def bars(*runs: Run, step_seconds: float = 100.0) -> list[tuple[str, float, float]]:
    made = bars_of_runs(runs, device="GPU:1", stage=1, step_seconds=step_seconds)
    assert {bar.device for bar in made} <= {"GPU:1"}
    return [(bar.action, bar.start_seconds, bar.end_seconds) for bar in made]


def test_ops_of_a_kind_share_a_bar_up_to_a_break() -> None:
    # Half a second is 0.5 % of the step.
    assert bars((F, 0, 10), (F, 10.5, 20), (F, 20.6, 30), (B, 30, 40), (U, 40, 50)) == [
        ("1F0", 0, 20), ("1F0", 20.6, 30), ("1B0", 30, 40), ("U", 40, 50),
    ]  # fmt: skip


def test_a_short_bar_between_two_of_one_kind_is_part_of_them() -> None:
    assert bars((B, 0, 10), (U, 10, 10.2), (B, 10.4, 20), (U, 20, 21), (B, 21, 30)) == [
        ("1B0", 0, 20), ("U", 20, 21), ("1B0", 21, 30),
    ]  # fmt: skip


def test_ops_that_overlap_have_bars_that_do_not() -> None:
    assert bars((F, 0, 10), (B, 2, 4), (B, 8, 20)) == [("1F0", 0, 10), ("1B0", 10, 20)]


runs = st.lists(
    st.tuples(st.sampled_from(Phase), st.floats(0, 100), st.floats(0, 20)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=30,
)


@given(runs)
def test_bars_follow_each_other_and_cover_all_runs(made: list[Run]) -> None:
    found = bars(*made)
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(found))
    for _, start, end in made:
        covered = sum(max(0.0, min(end, until) - max(start, since)) for _, since, until in found)
        assert covered >= end - start - 1e-9
