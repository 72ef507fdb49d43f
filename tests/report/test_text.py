"""What the text report says: golden reports, and each sentence that depends on the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from partitioner.ir.plan import Baseline, Objective, PlanDocument, Strategy, Verification
from partitioner.report.text import render
from partitioner.spelling import as_flags

Golden = Callable[[str, str], None]


def test_golden_report_of_a_split(split_plan: PlanDocument, passed: Verification, golden: Golden) -> None:
    plan = replace(split_plan, verification=passed)
    golden("report_split.txt", render(plan, files=["out/plan.json", "out/placement.dot"]))
    golden("report_split_verbose.txt", render(plan, ["out/plan.json", "out/placement.dot"], verbose=True))


def test_golden_report_of_a_single_device(single_plan: PlanDocument, golden: Golden) -> None:
    golden("report_single.txt", render(single_plan))
    golden("report_single_verbose.txt", render(single_plan, verbose=True))


def test_golden_report_of_microbatches(pipeline_plan: PlanDocument, golden: Golden) -> None:
    golden("report_microbatches.txt", render(pipeline_plan))
    golden("report_microbatches_verbose.txt", render(pipeline_plan, verbose=True))


def test_golden_report_of_interleaved_stages(interleaved_plan: PlanDocument, golden: Golden) -> None:
    golden("report_interleaved.txt", render(interleaved_plan))
    golden("report_interleaved_verbose.txt", render(interleaved_plan, verbose=True))


def test_a_plan_of_an_earlier_version_renders_the_same(split_plan: PlanDocument) -> None:
    fields = json.loads(split_plan.to_json())
    del fields["considered"], fields["timeline"]
    for stage in fields["stages"]:
        del stage["recompute"]
    again = PlanDocument.from_json(json.dumps(fields))
    for verbose in (False, True):
        assert render(again, verbose=verbose) == render(split_plan, verbose=verbose)


def test_a_plan_with_microbatches_read_back_from_json_renders_the_same(interleaved_plan: PlanDocument) -> None:
    again = PlanDocument.from_json(interleaved_plan.to_json())
    for verbose in (False, True):
        assert render(again, verbose=verbose) == render(interleaved_plan, verbose=verbose)


def test_a_plan_read_back_from_json_renders_the_same(split_plan: PlanDocument, passed: Verification) -> None:
    plan = replace(split_plan, verification=passed)
    assert render(PlanDocument.from_json(plan.to_json())) == render(plan)


@pytest.mark.parametrize(
    ("status", "seconds", "said"),
    [
        ("time-limit", 0.0, "the search ended by its time, no solver was needed"),
        ("time-limit", 4.0, "the search ended by its time; solver 4.00 s, seed 7"),
        ("optimal", 0.0, "optimal, no solver was needed"),
        ("feasible", 4.0, "feasible in 4.00 s, seed 7"),
    ],
)
def test_bug_a_solver_that_was_not_asked_was_said_to_have_run_out_of_time(
    split_plan: PlanDocument, status: str, seconds: float, said: str
) -> None:
    """`time-limit in 0 s, seed 0`."""
    plan = replace(split_plan, solver=replace(split_plan.solver, status=status, seconds=seconds))
    assert _line(render(plan), "solver").removeprefix("  solver").strip() == said


def test_single_names_the_argument_that_forces_a_split(single_plan: PlanDocument) -> None:
    assert "to split it all the same: strategy='layer-split'" in render(single_plan)
    text = render(single_plan, verbose=True, spell=as_flags)
    assert "to split it all the same: --strategy layer-split" in text
    assert "layer-split 15.0 ms (1.25x slower)" in text


def test_one_given_device_has_no_advice_to_split(single_plan: PlanDocument) -> None:
    text = render(replace(single_plan, devices=single_plan.devices[:1]))
    assert "only one device is given" in text
    assert "strategy=" not in text


def test_single_as_asked_for_names_a_faster_split(single_plan: PlanDocument) -> None:
    faster = Baseline(name="layer-split", step_seconds=8e-3, fits=True)
    plan = replace(single_plan, requested_strategy=Strategy.SINGLE, baselines=(faster,))
    text = render(plan)
    assert "as asked for" in text
    assert "a split would be faster: layer-split 8.00 ms (1.50x faster)" in text


def test_a_slower_split_as_asked_for_says_so(split_plan: PlanDocument) -> None:
    alone = Baseline(name="single-device", step_seconds=1e-3, fits=True)
    text = render(replace(split_plan, requested_strategy=Strategy.LAYER_SPLIT, baselines=(alone,)))
    assert "one device alone would be faster: 1.00 ms a step against 2.00 ms, so this plan is 2.00x slower" in text
    assert "to run on one device: strategy='single'" in text


def test_a_split_for_another_objective_says_which(split_plan: PlanDocument) -> None:
    alone = Baseline(name="single-device", step_seconds=1e-3, fits=True)
    text = render(replace(split_plan, objective=Objective.MEMORY, baselines=(alone,)))
    assert "the objective is memory, not throughput" in text


def test_a_model_too_big_for_one_device(split_plan: PlanDocument) -> None:
    alone = Baseline(name="single-device", step_seconds=1e-3, fits=False)
    text = render(replace(split_plan, baselines=(alone,)))
    assert "the model does not fit on one device" in text
    assert "does not fit" in _line(text, "single-device")


def test_too_much_memory_is_said(split_plan: PlanDocument) -> None:
    first, second = split_plan.stages
    peak_bytes = 9 << 30
    plan = replace(
        split_plan,
        stages=(replace(first, peak_bytes=peak_bytes), second),
        predicted=replace(split_plan.predicted, peak_bytes={first.device: peak_bytes}),
    )
    text = render(plan, width=120, verbose=True)
    assert "9.0 / 8.0 GiB, too much" in text
    assert "does not fit" in _line(text, "this plan")


def test_uncosted_ops_are_named_and_counted(split_plan: PlanDocument) -> None:
    text = render(replace(split_plan, uncosted_ops=tuple(f"Op{i:02}" for i in range(14))), verbose=True)
    line = _line(text, "Op00")
    assert "Op11 and 2 more: their arithmetic is not in the estimates" in f"{line} {_after(text, line)}"
    assert "without a cost formula" not in render(split_plan, verbose=True)


def test_failed_verification_names_the_misplaced_ops(split_plan: PlanDocument, passed: Verification) -> None:
    failed = replace(passed, misplaced_ops=("dense/MatMul", "logits/MatMul"))
    text = render(replace(split_plan, verification=failed))
    assert "FAILED: 2 of 214 ops ran on another device than planned" in text
    assert "misplaced: dense/MatMul, logits/MatMul" in text
    assert "where it was planned" not in text


def test_verification_of_inference_shows_no_gradients(split_plan: PlanDocument, passed: Verification) -> None:
    plan = replace(split_plan, model=replace(split_plan.model, training=False), verification=passed)
    brief, text = render(plan), render(plan, verbose=True)
    for word in ("gradients", "optimizer"):
        assert word not in text
        assert word not in brief
    assert _line(text, "control").split()[-2:] == ["6.0e-08", "5.0e-07"]


@pytest.mark.parametrize("verbose", [False, True])
def test_absent_verification_names_the_argument(split_plan: PlanDocument, verbose: bool) -> None:
    assert "not run; verify runs" in render(split_plan, verbose=verbose)
    assert "not run; --verify runs" in render(split_plan, verbose=verbose, spell=as_flags)


def test_replicas_and_microbatches_show(split_plan: PlanDocument) -> None:
    second = tuple(replace(stage, replica=1) for stage in split_plan.stages)
    both = (*split_plan.stages, *second)
    text = render(replace(split_plan, num_replicas=2, stages=both, num_microbatches=4, schedule="1f1b"), verbose=True)
    assert "2 replicas, 2 stages, 4 microbatches, schedule 1f1b" in text
    assert "0, replica 0" in text
    assert "1, replica 1" in text


def test_who_shares_a_stage_shows(split_plan: PlanDocument) -> None:
    first, second = split_plan.stages
    own = (first, *(replace(first, replica=replica) for replica in (1, 2, 3)))
    text = render(replace(split_plan, num_replicas=4, stages=(*own, second)), verbose=True)
    assert "4 replicas that share GPU:1, 2 stages" in text
    assert "1, all replicas" in text
    text = render(replace(split_plan, num_replicas=4, stages=(*own, second, replace(second, replica=1))), verbose=True)
    assert "1, replicas 0, 2" in text
    assert "1, replicas 1, 3" in text


def test_microbatches_are_shown_only_where_the_batch_is_cut(pipeline_plan: PlanDocument) -> None:
    whole = replace(pipeline_plan, num_microbatches=1, schedule="sequential")
    for text in ("microbatches (estimated)", "timeline (estimated)", "microbatches are"):
        assert text in render(pipeline_plan, verbose=True)
        assert text not in render(whole, verbose=True)


def test_recompute_has_a_column_only_where_a_stage_recomputes(pipeline_plan: PlanDocument) -> None:
    assert "recompute " not in _stages(pipeline_plan)
    stages = replace(pipeline_plan.stages[0], recompute=True), pipeline_plan.stages[1]
    lines = _stages(replace(pipeline_plan, stages=stages)).splitlines()
    assert lines[0].split()[-1] == "recompute"
    assert [line.split()[-1] for line in lines if "GPU" in line] == ["yes", "no"]


def test_the_chosen_candidate_alone_is_marked(pipeline_plan: PlanDocument) -> None:
    section = render(pipeline_plan, verbose=True).split("microbatches (estimated)\n")[1].split("\n\n")[0]
    marked = [line.split()[:3] for line in section.splitlines() if line.endswith("this plan")]
    assert marked == [["2", "4", "1f1b"]]


@pytest.mark.parametrize(
    ("seconds", "fits", "sentence"),
    [
        (1.8e-3, True, "4 microbatches are 1.50x faster than the batch in one piece: 1.20 ms a step against 1.80 ms"),
        (0.6e-3, True, "4 microbatches are 2.00x slower than the batch in one piece: 1.20 ms a step against 600 us"),
        (1.2e-3, True, "4 microbatches are as fast as the batch in one piece: 1.20 ms a step against 1.20 ms"),
        (0.6e-3, False, "the batch in one piece does not fit"),
    ],
)
def test_microbatches_are_compared_with_the_batch_in_one_piece(
    pipeline_plan: PlanDocument, seconds: float, fits: bool, sentence: str
) -> None:
    candidates = [
        replace(candidate, step_seconds=seconds, fits=fits)
        if (candidate.num_stages, candidate.num_microbatches) == (2, 1)
        else candidate
        for candidate in pipeline_plan.considered
    ]
    assert f"\n  {sentence}\n" in render(replace(pipeline_plan, considered=tuple(candidates)))


def test_passes_are_coloured_by_direction(pipeline_plan: PlanDocument) -> None:
    text = render(pipeline_plan, color=True, verbose=True)
    assert "GPU:0  \x1b[34m000000111111\x1b[0m......\x1b[35maaaaaa\x1b[0m\x1b[34m222222" in text


def test_markup_in_names_stays_text(split_plan: PlanDocument) -> None:
    stage = replace(split_plan.stages[0], layers=("[red]a[/red]", ":smile:"))
    plan = replace(split_plan, stages=(stage,), notes=("see [link=x]this[/link]",))
    text = render(plan)
    assert "[red]a[/red], :smile:" in text
    assert "see [link=x]this[/link]" in text


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_asked(
    interleaved_plan: PlanDocument, passed: Verification, width: int, verbose: bool
) -> None:
    text = render(replace(interleaved_plan, verification=passed), width=width, verbose=verbose)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_long_layer_name_wraps_and_the_figures_stay(split_plan: PlanDocument) -> None:
    stage = replace(split_plan.stages[0], layers=("encoder/" * 20,))
    lines = render(replace(split_plan, stages=(stage,)), width=80, verbose=True).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  0  "))
    assert lines[first].split()[:2] == ["0", "GPU:0"]
    assert " 150 " in lines[first] and " 1.25 ms " in lines[first]
    column = lines[first].index("encoder/")
    end = lines.index("step time (estimated)")
    wrapped = "".join(line[column:].split("  ")[0].strip() for line in lines[first:end])
    assert wrapped == "encoder/" * 20


def test_narrow_reports_keep_the_first_columns(split_plan: PlanDocument) -> None:
    lines = render(split_plan, width=60, verbose=True).splitlines()
    rows = lines[lines.index("stages (estimated)") : lines.index("step time (estimated)")]
    assert [line.split()[:2] for line in rows if "GPU" in line] == [["0", "GPU:0"], ["1", "GPU:1"]]


def test_colour_only_on_request(split_plan: PlanDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert "\x1b[" not in render(split_plan)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[1mstrategy\x1b[0m" in render(split_plan, color=True).replace("\n", "")


def _stages(plan: PlanDocument) -> str:
    return render(plan, verbose=True).split("stages (estimated)\n")[1].split("\n\n")[0]


def _line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def _after(text: str, line: str) -> str:
    lines = text.splitlines()
    return lines[lines.index(line) + 1].strip()


def test_numbers_that_fail_are_called_failed(split_plan: PlanDocument, passed: Verification) -> None:
    failed = replace(passed, outputs_max_rel_diff=0.25, passed=False)
    text = render(replace(split_plan, verification=failed))
    assert "FAILED: relative differences beyond 1e-05" in text
    assert "2.5e-01" in text
