"""The candidates considered and the idle time of schedules, held against tables of schedules counted slot by slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.ir.plan import Considered, PlanDocument, Stage
from partitioner.report.microbatches import best_candidates, idle_sentence, is_chosen, is_staged, least_idle, passing
from tests.golden_schedules import golden_schedules

KNOWN = [
    (schedule, "".join(devices), num_microbatches, table)
    for schedule, devices, num_microbatches, table in golden_schedules()
    if len(set(devices)) == len(devices) > 1 or devices == list("abab")
    if num_microbatches >= {"zb-h1": len(devices), "zb-h2": 2 * len(devices) - 1}.get(schedule, 1)
]


@pytest.mark.parametrize(("schedule", "devices", "num_microbatches", "table"), KNOWN)
def test_the_least_idle_share_is_that_of_the_schedules_table(
    split_plan: PlanDocument, schedule: str, devices: str, num_microbatches: int, table: str
) -> None:
    slots = [slot for line in table.splitlines() for slot in line.split("|")[1].split()]
    least = least_idle(_plan(split_plan, schedule, devices, num_microbatches))
    assert least is not None
    assert least.share == pytest.approx(slots.count(".") / len(slots))


def test_the_tables_cover_every_schedule() -> None:
    assert {schedule for schedule, *_ in KNOWN} == {"sequential", "gpipe", "1f1b", "zb-h1", "zb-h2", "interleaved"}


@pytest.mark.parametrize(
    ("schedule", "devices"),
    [
        ("1f1b", "a"),
        ("1f1b", "aba"),
        ("gpipe", "aab"),
        ("1f1b", "abab"),
        ("gpipe", "abba"),
        ("sequential", "aa"),
        ("sequential", "aab"),
        ("interleaved", "aab"),
    ],
)
def test_no_formula_is_told_where_none_is_known(split_plan: PlanDocument, schedule: str, devices: str) -> None:
    assert least_idle(_plan(split_plan, schedule, devices, 4)) is None


def test_no_formula_is_told_where_gradients_are_delayed(split_plan: PlanDocument) -> None:
    """How much they fill of the time in which one device would work depends on what they take."""
    plan = replace(_plan(split_plan, "sequential", "ab", 1), delays_gradients=True)
    assert least_idle(plan) is None


def test_replicas_idle_as_one_of_them_does(split_plan: PlanDocument) -> None:
    one = _plan(split_plan, "1f1b", "ab", 4)
    other = tuple(replace(stage, replica=1, device=f"other {stage.device}") for stage in one.stages)
    two = replace(one, num_replicas=2, stages=(*one.stages, *other))
    assert least_idle(two) == least_idle(one)


def test_sequential_inference_is_a_pipeline(split_plan: PlanDocument) -> None:
    """0F0 0F1 0F2 . on a and . 1F0 1F1 1F2 on b: 2 of 8 slots are idle."""
    plan = _plan(split_plan, "sequential", "ab", 3)
    inference = replace(plan, model=replace(plan.model, training=False))
    least = least_idle(inference)
    assert least is not None
    assert least.share == pytest.approx(1 / 4)


def test_the_idle_sentence_tells_what_the_schedule_takes(
    pipeline_plan: PlanDocument, interleaved_plan: PlanDocument
) -> None:
    assert idle_sentence(pipeline_plan) == (  # 2 of 12 slots; (2-1)/(4+2-1)
        "devices idle 17 % of the step; 2 equal stages would idle 20 % to fill and drain, (S-1)/(M+S-1)"
    )
    assert idle_sentence(interleaved_plan) == (  # 2 of 18 slots; (2-1)/(2*4+2-1)
        "devices idle 11 % of the step; 2 devices with 2 equal stages each would idle 11 % to fill and drain, "
        "(D-1)/(VM+D-1)"
    )
    folded = replace(interleaved_plan, schedule="1f1b")
    assert idle_sentence(folded) == "devices idle 11 % of the step"
    assert idle_sentence(replace(pipeline_plan, stages=pipeline_plan.stages[:1])) == ""


def test_a_step_is_staged_by_microbatches_schedule_or_recompute(split_plan: PlanDocument) -> None:
    assert (is_staged(split_plan), passing(split_plan)) == (False, "")
    plan = replace(split_plan, num_microbatches=4)
    assert (is_staged(plan), passing(plan)) == (True, "4 microbatches, schedule sequential")
    plan = replace(split_plan, schedule="gpipe")
    assert (is_staged(plan), passing(plan)) == (True, "1 microbatch, schedule gpipe")
    plan = replace(split_plan, stages=(replace(split_plan.stages[0], recompute=True), split_plan.stages[1]))
    assert (is_staged(plan), passing(plan)) == (True, "")


def test_the_best_way_for_each_number_of_stages_and_microbatches(pipeline_plan: PlanDocument) -> None:
    """With two microbatches gpipe is faster but does not fit; with four, 1f1b is the plan's own."""
    candidates = best_candidates(pipeline_plan)
    assert [(candidate.num_stages, candidate.num_microbatches, candidate.schedule) for candidate in candidates] == [
        (2, 8, "1f1b"),
        (2, 4, "1f1b"),
        (2, 2, "1f1b"),
        (2, 1, "sequential"),
        (1, 1, "sequential"),
    ]


def test_the_chosen_way_is_shown_however_slow(pipeline_plan: PlanDocument) -> None:
    candidates = [_candidate(num_microbatches=count, step_seconds=1e-3 * count) for count in range(1, 31)]
    chosen = _candidate(num_microbatches=4, step_seconds=9.0)
    plan = replace(pipeline_plan, considered=(*candidates[:3], *candidates[4:], chosen))
    shown = best_candidates(plan)
    assert [candidate.num_microbatches for candidate in shown] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 4]
    assert [is_chosen(plan, candidate) for candidate in shown] == [False] * 11 + [True]


def test_the_chosen_way_stands_for_its_number_of_microbatches_though_another_is_faster(
    pipeline_plan: PlanDocument,
) -> None:
    considered = (_candidate(step_seconds=2.0), _candidate(schedule="gpipe", step_seconds=1.0))
    plan = replace(pipeline_plan, considered=considered)
    assert [candidate.schedule for candidate in best_candidates(plan)] == ["1f1b"]


def test_a_way_is_chosen_by_all_that_tells_ways_apart(pipeline_plan: PlanDocument) -> None:
    assert is_chosen(pipeline_plan, _candidate())
    for other in ({"num_stages": 3}, {"num_microbatches": 2}, {"schedule": "gpipe"}, {"num_recomputed": 1}):
        assert not is_chosen(pipeline_plan, _candidate(**other))


def _candidate(**given: object) -> Considered:
    fields = {
        "num_stages": 2,
        "num_microbatches": 4,
        "schedule": "1f1b",
        "num_recomputed": 0,
        "step_seconds": 1e-3,
        "largest_peak_bytes": 1 << 30,
        "fits": True,
    }
    return Considered(**{**fields, **given})  # pyright: ignore[reportArgumentType]


def _plan(plan: PlanDocument, schedule: str, devices: str, num_microbatches: int) -> PlanDocument:
    stages: list[Stage] = [replace(plan.stages[0], index=index, device=device) for index, device in enumerate(devices)]
    return replace(
        plan,
        stages=tuple(stages),
        num_stages=len(stages),
        schedule=schedule,
        num_microbatches=num_microbatches,
    )
