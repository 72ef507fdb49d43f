"""What is said of models without running them, beside probes that run them on parts of random rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import models
import pytest
from captures import capture
from oracle_loss_reduction import loss_reduction
from oracle_row_mixing import row_mixing

from partitioner.binding.traced_step import trace
from partitioner.capture.batch_axis import step as batch_axis
from partitioner.ir.step import CapturedStep, LossReduction, StepKind
from tests.benchmarks.coverage_models import MODELS, NotInstalledError

Capture = Callable[[], CapturedStep]
CANNOT_BE_SAID = {
    # Rows are sorted by expert and put back, by indices that depend on all of them.
    "transformer/experts-by-partition": "DynamicPartition",
}
"""Models of the coverage benchmark in which the probes find no mixing, and the op without a rule."""


def probed(capture_it: Capture, monkeypatch: pytest.MonkeyPatch) -> tuple[CapturedStep, str, str, LossReduction]:
    """The captured step, and beside it the mixing layer, why it cannot be cut, and the reduction by the probes."""
    seen: list[Any] = []
    flows_of_step = batch_axis.flows_of_step

    def spied(step: CapturedStep, settled: Any, static_shape: Any) -> Any:
        seen[:] = [step, static_shape]
        return flows_of_step(step, settled, static_shape)

    monkeypatch.setattr(batch_axis, "flows_of_step", spied)
    step = capture_it()
    if not seen:
        return step, "", step.fixed_batch, step.loss_reduction
    bare, static_shape = seen
    mixing = row_mixing(bare, static_shape)
    reduction = LossReduction.MEAN
    if "loss" in bare.outputs:
        reduction, _ = loss_reduction(replace(bare, fixed_batch=mixing.uncuttable), "loss", static_shape)
    return step, mixing.layer, mixing.uncuttable, reduction


@pytest.mark.parametrize("kind", [StepKind.TRAIN, StepKind.PREDICT])
@pytest.mark.parametrize("name", models.MODELS)
def test_models_of_all_kinds(name: str, kind: StepKind, monkeypatch: pytest.MonkeyPatch) -> None:
    step, *probes = probed(lambda: capture(models.MODELS[name](), kind), monkeypatch)
    assert [step.graph.mixing_layer, step.fixed_batch, step.loss_reduction] == probes


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, entry in MODELS.items() for mode in entry.modes])
def test_models_of_the_coverage_benchmark(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = MODELS[name]
    keras.utils.set_random_seed(0)
    try:
        built = entry.built()
    except NotInstalledError as error:
        pytest.skip(f"not installed: {error}")

    def capture_it() -> CapturedStep:
        return trace(
            built.model,
            training=mode == "training",
            batch_size=entry.batch_size,
            input_shapes={"": tuple(built.input_shape)} if built.input_shape else {},
            example_inputs=built.inputs,
            example_targets=built.targets,
        ).step

    step, layer, uncuttable, reduction = probed(capture_it, monkeypatch)
    if name in CANNOT_BE_SAID:
        assert step.graph.mixing_op == CANNOT_BE_SAID[name]
        assert (layer, uncuttable) == ("", "")
        return
    assert [bool(step.graph.mixing_layer), bool(step.fixed_batch)] == [bool(layer), bool(uncuttable)]
    assert step.loss_reduction is reduction
