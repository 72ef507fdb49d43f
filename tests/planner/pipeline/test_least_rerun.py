"""Ways of the stages of a device: they go on to fit, and none runs more again than before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partitioner.planner.pipeline.least_rerun import Need, least_rerun


@st.composite
def stages(draw: st.DrawFn) -> list[list[Need]]:
    """Ways of stages, each with more seconds and fewer bytes than the one before."""
    few = st.integers(0, 9)
    needs = []
    for _ in range(draw(st.integers(1, 5))):
        held, seconds = sorted(draw(st.tuples(few, few, few)), reverse=True), sorted(draw(st.tuples(few, few)))
        needs.append(
            [
                Need(held_bytes=size, computed_bytes=draw(few), again_seconds=again)
                for size, again in zip(held, [0, *seconds], strict=True)
            ]
        )
    return needs


def peak(needs: list[list[Need]], ways: list[int]) -> float:
    now = [of_stage[way] for of_stage, way in zip(needs, ways, strict=True)]
    return sum(need.held_bytes for need in now) + max(need.computed_bytes for need in now)


@given(stages(), st.data())
def test_stages_that_fit_still_do_and_none_runs_more_again(needs: list[list[Need]], data: st.DataObject) -> None:
    ways = [data.draw(st.integers(0, 2)) for _ in needs]
    limit = data.draw(st.integers(0, 60))
    found = least_rerun(needs, ways, limit)
    if peak(needs, ways) > limit:
        assert found == ways
    else:
        assert peak(needs, found) <= limit
        assert all(now <= before for now, before in zip(found, ways, strict=True))


def of(held: float, again: float) -> list[Need]:
    """A stage that keeps so many bytes, or runs again for so long."""
    kept = Need(held_bytes=held, computed_bytes=1.0, again_seconds=0.0)
    return [kept, Need(held_bytes=0.0, computed_bytes=1.0, again_seconds=again)]


def test_what_takes_longest_to_run_again_for_its_bytes_is_kept() -> None:
    needs = [of(4, 1.0), of(4, 3.0), of(2, 1.0), of(8, 4.0)]
    assert least_rerun(needs, [1] * 4, 6.9) == [1, 0, 1, 1]
    assert least_rerun(needs, [1] * 4, 7.0) == [1, 0, 0, 1]
    assert least_rerun(needs, [1] * 4, 15.0) == [1, 0, 0, 0]
    assert least_rerun(needs, [1] * 4, 19.0) == [0, 0, 0, 0]


def test_a_kept_stage_may_also_free_what_running_again_takes() -> None:
    again = Need(held_bytes=0.0, computed_bytes=9.0, again_seconds=1.0)
    kept = Need(held_bytes=8.0, computed_bytes=0.0, again_seconds=0.0)
    assert least_rerun([[kept, again]], [1], 9.0) == [0]
