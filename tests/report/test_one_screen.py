"""The default report: one screen for any plan, what limits the step in words, nothing lost that the verbose one has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.ir.plan import (
    Baseline,
    DeviceInfo,
    LinkInfo,
    Origin,
    PlanDocument,
    PlannedLayer,
    Strategy,
    Updates,
    Verification,
    WhatIf,
)
from partitioner.report.checks import verification_lines
from partitioner.report.text import render
from tests.plan_memory import with_memory

MAX_LINES = 60
NOTES = tuple(f"Note {number}: {'a remark that is longer than a line of the page, ' * 4}" for number in range(9))
CHANGES = tuple(
    WhatIf(change=f"{number} GiB more on GPU:0", before=2e-3, after=1e-3 / number, unit="s") for number in range(1, 8)
)


def gpu(index: int, task: int = 0) -> str:
    """The canonical name of a GPU."""
    return f"/job:worker/replica:0/task:{task}/device:GPU:{index}"


def of_replicas(plan: PlanDocument, num_replicas: int, num_stages: int, *, num_tasks: int = 1) -> PlanDocument:
    """The plan on as many devices as stages of replicas, alike but for their hardware and what they take."""
    count = num_replicas * num_stages
    names = [gpu(index % (count // num_tasks), index * num_tasks // count) for index in range(count)]
    stages = tuple(
        replace(
            plan.stages[0],
            index=place % num_stages,
            replica=place // num_stages,
            device=device,
            compute_seconds=1e-3 * (1 + place % 5),
            layers=tuple(f"block_{place % num_stages}/layer_{number}" for number in range(6)),
        )
        for place, device in enumerate(names)
    )
    peaks = {device: (1 + place % 9) << 29 for place, device in enumerate(names)}
    devices = tuple(
        DeviceInfo(
            name=device, hardware=f"card {place % 7}", origin=Origin.ASSUMED, memory_bytes=(1 + place % 11) << 30
        )
        for place, device in enumerate(names)
    )
    singles = tuple(
        Baseline(name=f"single-device GPU:{place}", step_seconds=1e-3 * (3 + place), fits=place % 2 == 0)
        for place in range(count)
    )
    return replace(
        plan,
        strategy=Strategy.MIRRORED if num_stages == 1 else Strategy.MIXED,
        num_replicas=num_replicas,
        num_stages=num_stages,
        devices=devices,
        stages=stages,
        placement={"conv2d/Conv2D": names[0]},
        predicted=replace(plan.predicted, peak_bytes=peaks),
        baselines=(*singles, *plan.baselines),
        layers=tuple(
            PlannedLayer(name=layer, class_name="Dense", device=names[index])
            for index, stage in enumerate(stages[:num_stages])
            for layer in stage.layers
        ),
        edges=(),
        memory=tuple(replace(with_memory(plan).memory[0], device=device) for device in names),
        timeline=(),
        links=tuple(
            LinkInfo(
                name=f"link {number}",
                origin=Origin.ASSUMED,
                latency_seconds=1e-6,
                bandwidth_bytes_per_second=1e9 * (1 + number),
                num_pairs=8,
                sent_bytes=1 << 20,
            )
            for number in range(12)
        ),
    )


def with_everything(plan: PlanDocument, verification: Verification) -> PlanDocument:
    """The plan with many notes, changes of the machine, uncosted ops and misplaced ops."""
    ran_on = {info.name: info.name.replace("GPU", "CPU") for info in plan.devices}
    failed = replace(verification, misplaced_ops=tuple(f"op/{n}" for n in range(40)), ran_on=ran_on, passed=False)
    return replace(
        plan,
        notes=NOTES,
        what_if=CHANGES,
        uncosted_ops=tuple(f"Op{number}" for number in range(30)),
        verification=failed,
        model=replace(plan.model, name="model_" * 30, loss_origin="assumed", optimizer="momentum " * 9),
    )


@pytest.fixture
def plans(
    split_plan: PlanDocument, single_plan: PlanDocument, pipeline_plan: PlanDocument, interleaved_plan: PlanDocument
) -> dict[str, PlanDocument]:
    """Plans of every strategy, from one device to 512."""
    updates = {"updates": Updates.ASYNC, "max_staleness": 7}
    return {
        "split": with_memory(split_plan),
        "single": single_plan,
        "microbatches": pipeline_plan,
        "interleaved": interleaved_plan,
        "mirrored": of_replicas(split_plan, 32, 1),
        "mixed": of_replicas(pipeline_plan, 2, 4),
        "async": replace(of_replicas(split_plan, 8, 1), **updates),
        "16 stages": of_replicas(interleaved_plan, 1, 16),
        "512 devices": of_replicas(pipeline_plan, 64, 8, num_tasks=64),
    }


CASES = ["split", "single", "microbatches", "interleaved", "mirrored", "mixed", "async", "16 stages", "512 devices"]


@pytest.mark.parametrize("name", CASES)
def test_any_plan_fits_one_screen(plans: dict[str, PlanDocument], passed: Verification, name: str) -> None:
    files = [f"directory/{'long' * 20}/file_{number}" for number in range(7)]
    for plan in (plans[name], with_everything(plans[name], passed)):
        for width in (80, 100):
            lines = render(plan, files, width=width).splitlines()
            assert len(lines) <= MAX_LINES
            assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", CASES)
def test_sections_stand_in_one_order(plans: dict[str, PlanDocument], passed: Verification, name: str) -> None:
    text = render(with_everything(plans[name], passed), ["plan.json"])
    titles = ["strategy", "stages (", "step time (", "memory ("]
    labels = ["solver", "bottleneck", "what if", "assumptions", "verification", "notes", "files"]
    places = [text.index(f"\n{title}") for title in (*titles, *(f"  {label} " for label in labels))]
    assert places == sorted(places)


@pytest.mark.parametrize("name", CASES)
def test_the_verbose_report_has_every_fact(plans: dict[str, PlanDocument], passed: Verification, name: str) -> None:
    """Every stage that is not an alike replica's, baseline, note, change, op, tensor and link is there."""
    plan = with_everything(plans[name], passed)
    words = " ".join(render(plan, ["plan.json"], verbose=True, width=4000).split())
    facts = [*(" ".join(note.split()) for note in plan.notes), *(change.change for change in plan.what_if)]
    facts += [baseline.name for baseline in plan.baselines] + [link.name for link in plan.links]
    facts += [tensor.op for memory in plan.memory[:1] for tensor in memory.largest]
    facts += ["Op11 and 18 more", "hardware", "microbatches (est" if plan.considered else "", "plan.json"]
    facts += [stage.layers[0] for stage in plan.stages]
    assert [fact for fact in facts if fact not in words] == []


def test_replicas_and_devices_are_folded(split_plan: PlanDocument) -> None:
    plan = of_replicas(split_plan, 32, 1)
    alike = tuple(replace(info, memory_bytes=8 << 30, hardware="card") for info in plan.devices)
    stages = tuple(replace(stage, compute_seconds=1e-3) for stage in plan.stages)
    text = render(replace(plan, devices=alike, stages=stages))
    (row,) = _rows(text, "stages (")
    assert row == "0 /job:worker/task:0/GPU:0-31 block_0/layer_0 .. block_0… 150 73.5 KiB 1.00 ms 784 KiB"
    (row,) = _rows(text, "memory (")
    assert row == "/job:worker/task:0/GPU:0-31 up to 4.5 GiB 8.0 GiB 56 % fits activations 92.0 MiB"


def test_stages_beyond_eight_are_counted(split_plan: PlanDocument) -> None:
    rows = _rows(render(of_replicas(split_plan, 1, 16)), "stages (")
    assert len(rows) == 8
    assert rows[-1] == "9 more stages, each with at most 3.00 ms of compute"


def test_the_fastest_single_device_stays_among_the_baselines(split_plan: PlanDocument) -> None:
    others = tuple(Baseline(name=f"other {n}", step_seconds=1e-3, fits=True) for n in range(6))
    singles = tuple(Baseline(name=f"single-device GPU:{n}", step_seconds=9e-3, fits=True) for n in range(8))
    rows = _rows(render(replace(split_plan, baselines=(*others, *singles))), "step time (")
    assert [row.split("  ")[0] for row in rows][-2:] == [
        "single-device (any of 8) 9.00 ms 4.50x slower fits", "4 more in the verbose report"
    ]  # fmt: skip


def test_the_report_says_what_limits_the_step(split_plan: PlanDocument, single_plan: PlanDocument) -> None:
    """The first of `limits`; GPU:0 computes 1.25 ms of 2 ms, GPU:1 480 us, and each is busy 135 us more on average."""
    text = " ".join(render(split_plan).split())
    assert "the bubble limits the step: GPU:0 waits 615 us of 2.00 ms (31 %) for others and links" in text
    assert "devices idle 50 % of the step" in text
    assert "CPU:0 does all the work: its ops take 12.0 ms of the 12.0 ms step" in render(single_plan)


def test_what_is_assumed_is_named(split_plan: PlanDocument) -> None:
    plan = replace(split_plan, model=replace(split_plan.model, loss_origin="assumed"))
    text = " ".join(render(plan).split())
    assert "assumed: GPU:1 as NVIDIA A100 80GB; loss sparse_categorical_crossentropy (Step.loss sets it)" in text
    assert "optimizer adam (Step.optimizer sets it)" in text
    measured = tuple(replace(info, origin=Origin.MEASURED) for info in plan.devices)
    inference = replace(plan, devices=measured, model=replace(plan.model, training=False))
    assert "assumed" not in render(inference)


def test_changes_of_the_machine_show_in_a_line_each(split_plan: PlanDocument) -> None:
    text = render(replace(split_plan, what_if=CHANGES))
    assert "  what if       1 GiB more on GPU:0: step 1.00 ms, 50 % less\n" in text
    assert "5 more changes in the verbose report" in text
    refused = WhatIf(change="a third GPU", before=2e-3, after=None, unit="s", reason="time is up")
    assert "a third GPU: not planned: time is up" in render(replace(split_plan, what_if=(refused,)))


def test_notes_beyond_two_lines_are_counted(split_plan: PlanDocument) -> None:
    text = render(replace(split_plan, notes=("first", "second", "third", "fourth")))
    assert "notes         first\n                second\n                the verbose report has 2 more notes\n" in text
    assert "more note" not in render(replace(split_plan, notes=("first", "second")))


def test_failed_numbers_come_first(split_plan: PlanDocument, passed: Verification) -> None:
    failed = replace(passed, outputs_max_rel_diff=0.25, passed=False)
    text = render(replace(split_plan, verification=failed))
    assert "verification  FAILED: relative differences beyond 1e-05" in text
    assert "largest relative difference 2.5e-01 (outputs); of the control run 5.0e-07" in text


def test_differences_that_the_control_explains_stand_apart(split_plan: PlanDocument, passed: Verification) -> None:
    explained = tuple(f"weights of {key}/bias 1.1e+00 (control 1.4e+00)" for key in "abc")
    verification = replace(passed, weights_max_rel_diff=1.1, explained=explained, other_max_rel_diff=3e-7)
    plan = replace(split_plan, verification=verification)
    assert "relative differences up to 3.0e-07, but for 3 tensors as far off in the control" in render(plan)
    told, _ = verification_lines(verification, training=True)
    assert "beyond 1e-05, as in the control run: weights of a/bias 1.1e+00 (control 1.4e+00), weights of b" in told[1]


def test_asynchronous_updates_are_named(split_plan: PlanDocument) -> None:
    plan = replace(split_plan, updates=Updates.ASYNC, max_staleness=3)
    assert "asynchronous updates, staleness at most 3" in render(plan)


def _rows(text: str, title: str) -> list[str]:
    """The rows of a table below its rule, each with single spaces."""
    section = next(part for part in text.split("\n\n") if part.startswith(title))
    return [" ".join(line.split()) for line in section.splitlines()[3:]]
