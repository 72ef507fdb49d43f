"""What adding the gradients of microbatches takes is measured where there may be several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import partitioner
from cost_models.measured import MeasuredOp, signature
from cost_models.specs import OpSpec, TensorSpec
from partitioner.measure.gradient_sums import adding, gradient_sums
from partitioner.measure.store import read_costs
from tests.asking import asked


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _plan(**arguments: Any) -> Any:
    layers = [keras.Input((300,)), keras.layers.Dense(200), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return partitioner.plan(model, **asked(devices=["CPU:1", "CPU:2"], batch_size=8, **arguments))


def _known(costs: Path) -> MeasuredOp | None:
    kernel = TensorSpec(shape=(300, 200), dtype="float32")
    (device,) = read_costs(costs).devices
    return device.ops.get(signature(OpSpec(type="AddV2", inputs=(kernel, kernel), outputs=(kernel,))))


def test_sums_of_gradients_are_measured_where_there_may_be_microbatches(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    _plan(costs="measured", microbatches=1, strategy="layer-split").save_costs(costs)
    assert _known(costs) is None
    _plan(costs="measured", microbatches=4, strategy="layer-split").save_costs(costs)
    known = _known(costs)
    assert known is not None
    # 60,000 numbers are neither added in a microsecond nor do they take 10 ms.
    assert 1e-6 < known.seconds < 1e-2
    assert known.crowded_seconds > 0


def test_each_dense_gradient_is_added_once_and_inference_has_none() -> None:
    step = _plan().traced.step
    sums = [op for op in gradient_sums(step).ops if op.type == "AddV2"]
    shapes = sorted(gradient_sums(step).tensor[op.outputs[0]].spec.shape for op in sums)
    assert shapes == [(1,), (200,), (200, 1), (300, 200)]
    assert not gradient_sums(_plan(training=False).traced.step).ops


def test_the_sums_run_by_the_names_that_they_are_measured_under() -> None:
    from partitioner.measure.profiler import profiled
    from partitioner.measure.step_times import seconds_by_op

    graph = gradient_sums(_plan().traced.step)
    run = adding(graph, "/job:localhost/replica:0/task:0/device:CPU:1")
    run()
    seconds = seconds_by_op(profiled(run), graph.op)
    assert sorted(seconds) == [f"gradient_sum_{index}" for index in range(4)]
    assert np.all(np.array(list(seconds.values())) > 0)
