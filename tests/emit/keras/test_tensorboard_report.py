"""The callback for TensorBoard: what stands in its event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import partitioner
from partitioner import TensorBoardReport
from partitioner.errors import UsageError
from tests import models
from tests.asking import asked

ROWS = 8


def written(folder: Path) -> tuple[list[Any], dict[str, list[tuple[int, float]]]]:
    """The graphs in an event file, and each scalar's steps and values."""
    (path,) = folder.glob("events.*")
    graphs, scalars = [], dict[str, list[tuple[int, float]]]()
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        if event.graph_def:
            graphs.append(tf.compat.v1.GraphDef.FromString(event.graph_def))
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                scalars.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return graphs, scalars


def test_the_placed_graph_and_figures_of_every_epoch(tmp_path: Path) -> None:
    options = {"devices": ["CPU:1", "CPU:2"], "batch_size": ROWS, "strategy": "layer-split", "time_limit": 5}
    placed = partitioner.auto_place(models.mlp(), **asked(**options))
    report = TensorBoardReport(tmp_path, num_warmup_steps=0)
    x, y = models.vectors(ROWS * 4)
    placed.fit(x, y, batch_size=ROWS, epochs=2, verbose=0, callbacks=[report])
    plan = placed.plan
    (graph_def,), predicted = written(tmp_path / "predicted")
    device_of = {node.name: node.device for node in graph_def.node if node.op != "Placeholder"}  # arguments have none
    placed_ops = [name for name in plan.placement if name in device_of]
    assert placed_ops and all(device_of[name] == plan.placement[name] for name in placed_ops)
    step = pytest.approx(plan.predicted.step_seconds)
    assert predicted["plan/step_seconds"] == [(0, step), (1, step)]
    assert predicted["plan/idle_share"][0] == (0, pytest.approx(plan.predicted.bubble_fraction))
    peaks = {tag: values[0][1] for tag, values in predicted.items() if tag.startswith("plan/peak_bytes/")}
    assert set(peaks) == {"plan/peak_bytes/CPU_1", "plan/peak_bytes/CPU_2"}
    assert max(peaks.values()) == pytest.approx(max(plan.predicted.peak_bytes.values()))
    _, measured = written(tmp_path / "measured")
    assert [epoch for epoch, _ in measured["plan/step_seconds"]] == [0, 1]
    assert measured["plan/step_seconds"][1][1] == pytest.approx(report.measured_seconds)


def test_it_is_for_placed_models(tmp_path: Path) -> None:
    model = models.mlp()
    x, y = models.vectors(ROWS)
    with pytest.raises(UsageError, match="is for a placed model"):
        model.fit(x, y, verbose=0, callbacks=[TensorBoardReport(tmp_path)])
    assert isinstance(TensorBoardReport(tmp_path), keras.callbacks.Callback)
