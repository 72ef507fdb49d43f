"""Hand-written plans, and the comparison with golden files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from partitioner.ir.plan import (
    Baseline,
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

GOLDEN = Path(__file__).parents[1] / "golden"
GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU1 = "/job:localhost/replica:0/task:0/device:GPU:1"
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
