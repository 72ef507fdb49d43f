"""Hand-written plans, and the comparison with golden files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from partitioner.ir.plan import (
    Baseline,
    Considered,
    DeviceInfo,
    ModelInfo,
    Origin,
    PlanDocument,
    PlannedEdge,
    PlannedLayer,
    Predicted,
    SolverInfo,
    Stage,
    Strategy,
    Verification,
)
from tests.timelines import GPU0, GPU1, timeline

GOLDEN = Path(__file__).parents[1] / "golden"
CPU0 = "/job:localhost/replica:0/task:0/device:CPU:0"
CPU1 = "/job:localhost/replica:0/task:0/device:CPU:1"


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden; on a difference the new text is kept to be read."""

    def check(name: str, text: str) -> None:
        actual = tmp_path / name
        actual.write_text(text, encoding="utf-8")
        assert text == (GOLDEN / name).read_text(encoding="utf-8"), f"the new text is {actual}"

    return check


@pytest.fixture
def split_plan() -> PlanDocument:
    """A small convolutional net over two GPUs: 64 x 3136 floats cross between the stages."""
    mib = 1 << 20
    layers = (
        PlannedLayer(name="image", class_name="InputLayer", device=GPU0, output_shape="(64, 28, 28, 1)"),
        PlannedLayer(
            name="conv2d",
            class_name="Conv2D",
            device=GPU0,
            output_shape="(64, 28, 28, 32)",
            parameter_bytes=1280,
        ),
        PlannedLayer(name="max_pooling2d", class_name="MaxPooling2D", device=GPU0, output_shape="(64, 14, 14, 32)"),
        PlannedLayer(
            name="conv2d_1",
            class_name="Conv2D",
            device=GPU0,
            output_shape="(64, 14, 14, 64)",
            parameter_bytes=73984,
        ),
        PlannedLayer(name="max_pooling2d_1", class_name="MaxPooling2D", device=GPU0, output_shape="(64, 7, 7, 64)"),
        PlannedLayer(name="flatten", class_name="Flatten", device=GPU0, output_shape="(64, 3136)"),
        PlannedLayer(
            name="dense",
            class_name="Dense",
            device=GPU1,
            output_shape="(64, 2048)",
            parameter_bytes=25_698_304,
        ),
        PlannedLayer(name="logits", class_name="Dense", device=GPU1, output_shape="(64, 10)", parameter_bytes=81_960),
    )
    sizes = {
        "image": 64 * 28 * 28 * 4,
        "conv2d": 64 * 28 * 28 * 32 * 4,
        "max_pooling2d": 64 * 14 * 14 * 32 * 4,
        "conv2d_1": 64 * 14 * 14 * 64 * 4,
        "max_pooling2d_1": 64 * 3136 * 4,
        "flatten": 64 * 3136 * 4,
        "dense": 64 * 2048 * 4,
    }
    edges = tuple(
        PlannedEdge(
            source=source.name,
            target=target.name,
            size_bytes=sizes[source.name],
            gradient_bytes=0 if source.name == "image" else sizes[source.name],
        )
        for source, target in itertools.pairwise(layers)
    )
    return PlanDocument(
        model=ModelInfo(
            source="examples/fashion_cnn.py:build_model",
            name="fashion_cnn",
            fingerprint="0123456789abcdef",
            num_ops=214,
            num_parameters=6_463_882,
            batch_size=64,
            training=True,
            loss="sparse_categorical_crossentropy",
            loss_origin="compiled",
            optimizer="adam",
            optimizer_origin="assumed",
        ),
        devices=(
            DeviceInfo(name=GPU0, hardware="NVIDIA A100 80GB", origin=Origin.CATALOGUE, memory_bytes=8 << 30),
            DeviceInfo(name=GPU1, hardware="NVIDIA A100 80GB", origin=Origin.ASSUMED, memory_bytes=8 << 30),
        ),
        strategy=Strategy.LAYER_SPLIT,
        num_replicas=1,
        num_stages=2,
        num_microbatches=1,
        schedule="sequential",
        updates="sync",
        stages=(
            Stage(
                index=0,
                replica=0,
                device=GPU0,
                layers=("conv2d", "max_pooling2d", "conv2d_1", "max_pooling2d_1", "flatten"),
                num_ops=150,
                parameter_bytes=75_264,
                peak_bytes=1229 * mib,
                compute_seconds=1.25e-3,
                send_bytes=802_816,
            ),
            Stage(
                index=1,
                replica=0,
                device=GPU1,
                layers=("dense", "logits"),
                num_ops=64,
                parameter_bytes=25_780_264,
                peak_bytes=120 * mib,
                compute_seconds=480e-6,
                send_bytes=802_816,
            ),
        ),
        placement={"conv2d/Conv2D": GPU0, "dense/MatMul": GPU1},
        predicted=Predicted(
            step_seconds=2.0e-3,
            latency_seconds=150e-6,
            bottleneck_stage=0,
            bubble_fraction=0.5,
            peak_bytes={GPU0: 1229 * mib, GPU1: 120 * mib},
        ),
        baselines=(
            Baseline(name="single-device", step_seconds=2.62e-3, fits=True),
            Baseline(name="equal-layers", step_seconds=4.0e-3, fits=True),
            Baseline(name="greedy", step_seconds=1.6e-3, fits=False),
        ),
        solver=SolverInfo(status="optimal", objective=2.0e-3, lower_bound=1.9e-3, gap=0.05, seconds=0.42, seed=7),
        layers=layers,
        edges=edges,
        notes=("Grappler's remapper is off in the placed model: it would fuse ops across devices.",),
    )


@pytest.fixture
def single_plan(split_plan: PlanDocument) -> PlanDocument:
    """The same net on two CPUs, where one alone is faster than any split."""
    stage = replace(
        split_plan.stages[0],
        device=CPU0,
        layers=("conv2d", "dense"),
        num_ops=214,
        parameter_bytes=25_855_528,
        peak_bytes=600 << 20,
        compute_seconds=12e-3,
        send_bytes=0,
    )
    return replace(
        split_plan,
        devices=tuple(
            DeviceInfo(name=name, hardware="this machine", origin=Origin.MEASURED, memory_bytes=1 << 30)
            for name in (CPU0, CPU1)
        ),
        strategy=Strategy.SINGLE,
        num_stages=1,
        stages=(stage,),
        placement={"conv2d/Conv2D": CPU0},
        predicted=Predicted(
            step_seconds=12e-3,
            latency_seconds=1e-3,
            bottleneck_stage=0,
            bubble_fraction=0.0,
            peak_bytes={CPU0: 600 << 20},
        ),
        baselines=(
            Baseline(name="single-device", step_seconds=12e-3, fits=True),
            Baseline(name="layer-split", step_seconds=15e-3, fits=True),
            Baseline(name="equal-layers", step_seconds=18e-3, fits=True),
        ),
        solver=SolverInfo(status="optimal", objective=12e-3, lower_bound=12e-3, gap=0.0, seconds=0.1, seed=0),
        layers=tuple(replace(layer, device=CPU0) for layer in split_plan.layers),
        notes=(),
    )


@pytest.fixture
def pipeline_plan(split_plan: PlanDocument) -> PlanDocument:
    """The split net with four microbatches, every pass of a stage 100 us: ten of them, then 200 us of updates."""
    candidates = [
        (1, 1, "sequential", 0, 2620, 1349, True),
        (2, 1, "sequential", 0, 2000, 1229, True),
        (2, 2, "1f1b", 0, 1400, 900, True),
        (2, 2, "gpipe", 0, 1390, 950, False),
        (2, 4, "1f1b", 0, 1200, 700, True),
        (2, 4, "1f1b", 1, 1250, 600, True),
        (2, 4, "gpipe", 0, 1200, 900, True),
        (2, 8, "1f1b", 0, 1100, 9000, False),
    ]
    return replace(
        split_plan,
        num_microbatches=4,
        schedule="1f1b",
        predicted=replace(
            split_plan.predicted,
            step_seconds=1.2e-3,
            bubble_fraction=1 / 6,  # 2 of 12 slots on each device
            peak_bytes={GPU0: 700 << 20, GPU1: 120 << 20},
        ),
        stages=(replace(split_plan.stages[0], peak_bytes=700 << 20), split_plan.stages[1]),
        considered=tuple(
            Considered(
                num_stages=num_stages,
                num_microbatches=num_microbatches,
                schedule=schedule,
                num_recomputed=num_recomputed,
                step_seconds=microseconds * 1e-6,
                largest_peak_bytes=mib << 20,
                fits=fits,
            )
            for num_stages, num_microbatches, schedule, num_recomputed, microseconds, mib, fits in candidates
        ),
        timeline=timeline(
            {
                GPU0: "0F0 0F1  .  0B0 0F2 0B1 0F3 0B2  .  0B3 U U",
                GPU1: " .  1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3  .  U U",
            }
        ),
    )


@pytest.fixture
def interleaved_plan(pipeline_plan: PlanDocument) -> PlanDocument:
    """Four stages dealt over two GPUs, of which the first reruns its forward ops; 18 slots of 100 us."""
    names = ("conv2d", "max_pooling2d"), ("conv2d_1", "max_pooling2d_1"), ("flatten",), ("dense", "logits")
    stages = tuple(
        replace(pipeline_plan.stages[index % 2], index=index, layers=layers, recompute=index == 0)
        for index, layers in enumerate(names)
    )
    where = {name: stage.device for stage in stages for name in stage.layers}
    return replace(
        pipeline_plan,
        num_stages=4,
        schedule="interleaved",
        predicted=replace(pipeline_plan.predicted, step_seconds=1.8e-3, bubble_fraction=1 / 9),
        stages=stages,
        layers=tuple(replace(layer, device=where.get(layer.name, GPU0)) for layer in pipeline_plan.layers),
        considered=(
            Considered(
                num_stages=4,
                num_microbatches=4,
                schedule="interleaved",
                num_recomputed=1,
                step_seconds=1.8e-3,
                largest_peak_bytes=700 << 20,
                fits=True,
            ),
        ),
        timeline=timeline(
            {
                GPU0: "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3",
                GPU1: " .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  . ",
            }
        ),
    )


@pytest.fixture
def passed() -> Verification:
    """Two GPUs stood in for by CPUs, every op where it belongs."""
    return Verification(
        outputs_max_abs_diff=0.0,
        loss_max_abs_diff=0.0,
        gradients_max_abs_diff=1.5e-8,
        gradients_max_rel_diff=2.0e-7,
        weights_max_abs_diff=3.0e-9,
        weights_max_rel_diff=4.0e-8,
        control_max_abs_diff=6.0e-8,
        control_max_rel_diff=5.0e-7,
        num_steps=3,
        num_ops_checked=214,
        misplaced_ops=(),
        ran_on={GPU0: CPU0, GPU1: CPU1},
    )
