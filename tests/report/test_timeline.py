"""The timeline as text: rows worked out by hand, and schedules whose tables are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitioner.ir.plan import PlanDocument, PlannedAction
from partitioner.report.timeline import Timeline, draw_timeline

GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"


def test_one_column_per_slot_is_the_schedules_table(interleaved_plan: PlanDocument) -> None:
    assert _draw(interleaved_plan, num_columns=18).rows == (
        ("GPU:0", "01012a3b2a3b.c.dcd"),
        ("GPU:1", ".010a1b2a3b2c3dcd."),
    )


def test_updates_and_idle_slots_show(pipeline_plan: PlanDocument) -> None:
    assert _draw(pipeline_plan, num_columns=12).rows == (
        ("GPU:0", "01.a2b3c.dUU"),
        ("GPU:1", ".0a1b2c3d.UU"),
    )


def test_a_column_shows_what_fills_most_of_it(pipeline_plan: PlanDocument) -> None:
    """Columns of 10 s: 6 of 10 taken, 4 of 10 taken, halves (the earlier one), then three shares."""
    plan = _with(
        pipeline_plan,
        ("0F0", 0, 6),
        ("0F1", 10, 14),
        ("0F2", 20, 25),
        ("0B0", 25, 30),
        ("0F3", 30, 33),
        ("0B1", 33, 37),
        ("0B2", 37, 40),
    )
    assert _draw(plan, num_columns=4).rows == (("GPU:0", "0.2b"),)


def test_passes_of_two_stages_for_one_microbatch_share_a_column(pipeline_plan: PlanDocument) -> None:
    plan = _with(pipeline_plan, ("0F1", 0, 3), ("0B0", 3, 7), ("2F1", 7, 10))
    assert _draw(plan, num_columns=1).rows == (("GPU:0", "1"),)


def test_time_after_the_last_action_is_idle(pipeline_plan: PlanDocument) -> None:
    plan = _with(pipeline_plan, ("0F0", 0, 10))
    plan = replace(plan, predicted=replace(plan.predicted, step_seconds=40.0))
    drawn = _draw(plan, num_columns=4)
    assert (drawn.rows, drawn.step_seconds) == ((("GPU:0", "0..."),), 40.0)


def test_devices_stand_in_the_plans_order(pipeline_plan: PlanDocument) -> None:
    plan = replace(pipeline_plan, timeline=tuple(reversed(pipeline_plan.timeline)))
    assert _draw(plan, num_columns=12) == _draw(pipeline_plan, num_columns=12)


def test_the_legend_tells_only_what_is_there(pipeline_plan: PlanDocument) -> None:
    def legend(*actions: tuple[str, float, float], num_microbatches: int, training: bool = True) -> str:
        plan = replace(_with(pipeline_plan, *actions), num_microbatches=num_microbatches)
        plan = replace(plan, model=replace(plan.model, training=training))
        return _draw(plan, num_columns=2).legend.split(";")[0]

    assert legend(("0F0", 0, 1), ("0B0", 1, 2), num_microbatches=1) == "0 forward, a backward, . idle"
    forwards = ("0F0", 0, 1), ("0F1", 1, 2)
    assert legend(*forwards, num_microbatches=2, training=False) == "0-1 forward by microbatch, . idle"
    assert legend(*forwards, num_microbatches=2) == "0-1 forward and backward by microbatch, . idle"
    many = [(f"0{kind}{i}", i, i + 1) for kind in "FB" for i in range(12)]
    assert legend(*many, ("U", 12, 13), num_microbatches=12) == (
        "0-9 forward, a-j backward by the microbatch's last digit, U update, . idle"
    )


def test_microbatches_from_ten_on_start_over(pipeline_plan: PlanDocument) -> None:
    plan = _with(pipeline_plan, ("0F9", 0, 1), ("0F10", 1, 2), ("0B19", 2, 3), ("0B20", 3, 4))
    assert _draw(plan, num_columns=4).rows == (("GPU:0", "90ja"),)


def test_without_actions_there_is_no_timeline(split_plan: PlanDocument) -> None:
    assert draw_timeline(split_plan, num_columns=72) is None


def test_an_unknown_action_is_refused(pipeline_plan: PlanDocument) -> None:
    with pytest.raises(ValueError, match="'0X0' is not an action"):
        draw_timeline(_with(pipeline_plan, ("0X0", 0, 1)), num_columns=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the plan never changes
@given(
    seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12),
    gaps=st.lists(st.floats(0, 1e3), min_size=12, max_size=12),
    num_columns=st.integers(1, 100),
)
def test_rows_have_their_columns_and_what_takes_two_shows(
    split_plan: PlanDocument, seconds: list[float], gaps: list[float], num_columns: int
) -> None:
    actions, now = [], 0.0
    for index, (taken, gap) in enumerate(zip(seconds, gaps, strict=False)):
        actions.append(
            PlannedAction(action=f"0F{index}", device=GPU0, start_seconds=now + gap, end_seconds=now + gap + taken)
        )
        now += gap + taken
    predicted = replace(split_plan.predicted, step_seconds=now)
    plan = replace(split_plan, predicted=predicted, timeline=tuple(actions))
    ((_, row),) = _draw(plan, num_columns=num_columns).rows
    assert len(row) == num_columns
    column = now / num_columns
    for index, action in enumerate(actions):
        if action.end_seconds - action.start_seconds > 2.001 * column:  # covers at least one column
            assert str(index % 10) in row


def _draw(plan: PlanDocument, *, num_columns: int) -> Timeline:
    drawn = draw_timeline(plan, num_columns=num_columns)
    assert drawn is not None
    return drawn


def _with(plan: PlanDocument, *actions: tuple[str, float, float]) -> PlanDocument:
    timeline = (
        PlannedAction(action=name, device=GPU0, start_seconds=start, end_seconds=end) for name, start, end in actions
    )
    return replace(plan, timeline=tuple(timeline))
