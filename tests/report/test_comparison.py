"""Two plans compared: figures by hand, layers that moved, nothing between a plan and itself, and one screen of text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.json import to_json
from partitioner.ir.plan import (
    CostsInfo,
    DeviceInfo,
    LinkInfo,
    ModelInfo,
    Origin,
    PlanDocument,
    PlannedLayer,
    Predicted,
    SolverInfo,
    Stage,
    Strategy,
    Verification,
)
from partitioner.report.comparison import SCHEMA, Change, Comparison, MovedLayer, compare_plans
from partitioner.report.comparison_text import render_comparison

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(3))
GPU0, GPU1, GPU2 = DEVICES
MIB = 2**20
LAYERS = ("first", "second", "third", "last")


def plan_of(devices: list[str], *, step_seconds: float = 1e-3, batch_size: int = 32, **changed: object) -> PlanDocument:
    """A chain of layers, each on a device; a device holds a MiB for each layer, computes 1 ms for it and sends 10 B."""
    used = list(dict.fromkeys(devices))
    layers = {device: tuple(n for n, d in zip(LAYERS, devices, strict=True) if d == device) for device in used}
    plan = PlanDocument(
        model=ModelInfo(
            source="chain.py",
            name="chain",
            fingerprint="0123456789abcdef",
            num_ops=4,
            num_parameters=100,
            batch_size=batch_size,
            training=True,
        ),
        devices=tuple(
            DeviceInfo(name=name, hardware="v100-16gb", origin=Origin.CATALOGUE, memory_bytes=8 * MIB)
            for name in DEVICES
        ),
        strategy=Strategy.LAYER_SPLIT if len(used) > 1 else Strategy.SINGLE,
        num_replicas=1,
        num_stages=len(used),
        num_microbatches=1,
        schedule="sequential",
        updates="sync",
        stages=tuple(
            Stage(
                index=index,
                replica=0,
                device=device,
                layers=layers[device],
                num_ops=len(layers[device]),
                parameter_bytes=0,
                peak_bytes=MIB * len(layers[device]),
                compute_seconds=1e-3 * len(layers[device]),
                send_bytes=10 * len(layers[device]),
            )
            for index, device in enumerate(used)
        ),
        placement={f"{name}/MatMul": device for name, device in zip(LAYERS, devices, strict=True)},
        predicted=Predicted(
            step_seconds=step_seconds,
            latency_seconds=step_seconds,
            bottleneck_stage=0,
            bubble_fraction=0.25,
            peak_bytes={device: MIB * len(layers[device]) for device in used},
        ),
        baselines=(),
        solver=SolverInfo(status="optimal", objective=1e-3, lower_bound=5e-4, gap=0.5, seconds=1.0, seed=0),
        layers=tuple(
            PlannedLayer(name=name, class_name="Dense", device=device)
            for name, device in zip(LAYERS, devices, strict=True)
        ),
    )
    return replace(plan, **changed)


PLANS = st.builds(
    plan_of,
    st.lists(st.sampled_from(DEVICES), min_size=4, max_size=4),
    step_seconds=st.floats(1e-6, 1e3),
    batch_size=st.integers(1, 10**6),
    num_microbatches=st.integers(1, 8),
    costs=st.sampled_from([CostsInfo(), CostsInfo(source="measured", measured_share=0.5)]),
)


@settings(deadline=None)
@given(PLANS)
def test_a_plan_and_itself_do_not_differ(plan: PlanDocument) -> None:
    found = compare_plans(plan, plan)
    assert found.is_same_plan
    assert found.is_same_model
    assert not (found.settings or found.stages or found.moved_layers or found.assumptions or found.verification)
    assert found.num_moved_ops == 0
    assert {figure.difference for figure in found.figures} == {0}
    assert {peak.difference_bytes for peak in found.memory} == {0}
    assert render_comparison(found).splitlines()[2:] == ["  the plans are the same"]


@settings(deadline=None)
@given(PLANS, PLANS)
def test_the_other_way_round_every_sign_and_side_is_the_other(one: PlanDocument, two: PlanDocument) -> None:
    there, back = compare_plans(one, two), compare_plans(two, one)
    assert there.is_same_plan == back.is_same_plan == (one == two)
    assert [(f.name, -f.difference, f.after, f.before) for f in there.figures] == [
        (f.name, f.difference, f.before, f.after) for f in back.figures
    ]
    assert {(p.device, -p.difference_bytes) for p in there.memory} == {
        (p.device, p.difference_bytes) for p in back.memory
    }
    assert swapped(there.settings) == set(back.settings)
    assert swapped(there.assumptions) == set(back.assumptions)
    assert {(m.layer, m.after, m.before) for m in there.moved_layers} == {
        (m.layer, m.before, m.after) for m in back.moved_layers
    }
    assert there.num_moved_ops == back.num_moved_ops


def swapped(changes: tuple[Change, ...]) -> set[Change]:
    return {Change(name=change.name, before=change.after, after=change.before) for change in changes}


def test_figures_by_hand() -> None:
    found = compare_plans(plan_of([GPU0] * 4), plan_of([GPU0, GPU0, GPU0, GPU1], step_seconds=8e-4))
    assert figures(found) == {
        "step": (1e-3, 8e-4),
        "rows per second": (32_000, pytest.approx(40_000)),
        "latency of one input": (1e-3, 8e-4),
        "devices idle": (0.25, 0.25),
        "largest peak": (4 * MIB, 3 * MIB),
        "bytes sent": (40, 40),
        "lower bound": (5e-4, 5e-4),
        "gap": (0.5, 0.5),
    }
    assert [(peak.device, peak.before_bytes, peak.after_bytes, peak.difference_bytes) for peak in found.memory] == [
        (GPU0, 4 * MIB, 3 * MIB, -MIB),
        (GPU1, 0, MIB, MIB),
    ]
    assert [peak.after_share for peak in found.memory] == [3 / 8, 1 / 8]
    assert found.moved_layers == (MovedLayer(layer="last", before=(GPU0,), after=(GPU1,)),)
    assert (found.num_moved_ops, found.num_common_ops) == (1, 4)
    assert {(change.name, change.before, change.after) for change in found.settings} == {
        ("strategy", "single", "layer-split"),
        ("devices used", "GPU:0", "GPU:0-1"),
        ("stages", "1", "2"),
    }
    assert [(c.index, c.before and c.before.layers, c.after and c.after.layers) for c in found.stages] == [
        (0, LAYERS, LAYERS[:3]),
        (1, None, LAYERS[3:]),
    ]


def figures(found: Comparison) -> dict[str, tuple[float, float]]:
    return {figure.name: (figure.before, figure.after) for figure in found.figures}


def test_a_replica_more_is_another_device_for_each_layer() -> None:
    single = plan_of([GPU0] * 4)
    (stage,) = single.stages
    mirrored = replace(single, num_replicas=2, stages=(stage, replace(stage, replica=1, device=GPU2)))
    moved = compare_plans(single, mirrored).moved_layers
    assert {(layer.before, layer.after) for layer in moved} == {((GPU0,), (GPU0, GPU2))}
    assert len(moved) == len(LAYERS)


def test_layers_that_keras_numbered_anew_are_the_same_layers() -> None:
    plan = plan_of([GPU0, GPU0, GPU1, GPU1])
    renamed = replace(plan, layers=tuple(replace(layer, name=f"{layer.name}_7") for layer in plan.layers))
    assert compare_plans(plan, renamed).moved_layers == ()
    other = replace(renamed, model=replace(plan.model, fingerprint="ff"))
    assert len(compare_plans(plan, other).moved_layers) == 2 * len(LAYERS)


def test_plans_of_different_models_say_so_first() -> None:
    plan = plan_of([GPU0] * 4)
    other = replace(plan, model=replace(plan.model, name="another", fingerprint="ff"))
    found = compare_plans(plan, other)
    assert not found.is_same_model
    assert not found.is_same_plan
    lines = render_comparison(found, ("a.json", "b.json")).splitlines()
    assert lines[:2] == ["A  chain (chain.py): a.json", "B  another (chain.py): b.json"]
    assert lines[2].startswith("  these are plans of different models (fingerprints 0123456789abcdef and ff)")


def test_assumptions_that_differ_are_named() -> None:
    link = LinkInfo(name="nvlink3", origin=Origin.CATALOGUE, latency_seconds=5e-6, bandwidth_bytes_per_second=3e11)
    plan = plan_of([GPU0] * 4, links=(link,), versions={"tensorflow": "2.20.0"})
    guessed = replace(plan.devices[2], hardware="t4", origin=Origin.ASSUMED, memory_bytes=2 * MIB)
    other = replace(
        plan,
        devices=(*plan.devices[:2], guessed),
        links=(replace(link, bandwidth_bytes_per_second=2.5e11),),
        versions={"tensorflow": "2.21.0"},
        costs=CostsInfo(source="measured", measured_share=0.5),
    )
    found = {change.name: (change.before, change.after) for change in compare_plans(plan, other).assumptions}
    assert found == {
        "GPU:2": ("v100-16gb (catalogue), 8.0 MiB", "t4 (assumed), 2.0 MiB"),
        "link nvlink3": ("300 GB/s, 5.00 us (catalogue)", "250 GB/s, 5.00 us (catalogue)"),
        "tensorflow": ("2.20.0", "2.21.0"),
        "costs of ops": ("analytic", "measured"),
        "measured share": ("", "50 %"),
    }


def test_verifications_are_compared_where_both_plans_have_one(split_plan: PlanDocument, passed: Verification) -> None:
    verified = replace(split_plan, verification=passed)
    failed = replace(passed, passed=False, misplaced_ops=("x: on CPU:0",))
    assert compare_plans(split_plan, verified).verification == ()
    found = compare_plans(verified, replace(split_plan, verification=failed)).verification
    assert set(found) == {
        Change(name="result", before="passed", after="FAILED"),
        Change(name="misplaced ops", before="0", after="1"),
    }


def test_bounds_in_other_units_are_not_compared() -> None:
    plan = plan_of([GPU0] * 4)
    in_bytes = replace(plan, solver=replace(plan.solver, unit="bytes"))
    assert "lower bound" not in figures(compare_plans(plan, in_bytes))


def test_the_text(split_plan: PlanDocument, pipeline_plan: PlanDocument, golden: Callable[[str, str], None]) -> None:
    plan = replace(split_plan, layers=tuple(replace(layer, device=GPU0) for layer in split_plan.layers))
    golden("comparison.txt", render_comparison(compare_plans(plan, pipeline_plan), ("a", "b")))


def test_whatever_differs_the_text_is_one_screen_and_verbose_has_all_of_it() -> None:
    names = [f"/job:worker/replica:0/task:{index // 8}/device:GPU:{index % 8}" for index in range(64)]

    def wide(shift: int) -> PlanDocument:
        (stage,) = plan_of([GPU0] * 4).stages
        devices = [names[(index + shift) % 64] for index in range(64)]
        return replace(
            plan_of([GPU0] * 4, batch_size=32 + shift),
            devices=tuple(
                DeviceInfo(name=name, hardware=f"card {index + shift}", origin=Origin.FILE, memory_bytes=MIB)
                for index, name in enumerate(names)
            ),
            num_stages=64,
            stages=tuple(replace(stage, index=index, device=device) for index, device in enumerate(devices)),
            layers=tuple(
                PlannedLayer(name=f"a rather long name of a block/layer_{index}", class_name="Dense", device=device)
                for index, device in enumerate(devices)
            ),
            placement={},
            predicted=replace(
                plan_of([GPU0] * 4).predicted, peak_bytes={n: 1 + i * (1 + shift) for i, n in enumerate(names)}
            ),
            schedule=f"schedule {shift}",
        )

    found = compare_plans(wide(0), wide(1))
    short, whole = render_comparison(found), render_comparison(found, verbose=True)
    assert 40 < len(short.splitlines()) <= 60
    assert max(map(len, short.splitlines())) <= 100
    assert "more in the verbose comparison" in short
    assert "more in the verbose comparison" not in whole
    assert all(f"card {index}" in whole for index in range(65))


def test_the_json_says_what_it_is() -> None:
    told = json.loads(to_json(compare_plans(plan_of([GPU0] * 4), plan_of([GPU1] * 4))))
    assert told["schema"] == SCHEMA == "partition-diff/1"
    assert (told["is_same_model"], told["is_same_plan"]) == (True, False)
    assert told["moved_layers"][0] == {"layer": "first", "before": [GPU0], "after": [GPU1]}
    assert told["figures"][0] == {"name": "step", "unit": "s", "before": 1e-3, "after": 1e-3, "difference": 0}
