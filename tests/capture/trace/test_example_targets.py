"""Losses that do not tell what targets are like: refused with a way out, or planned and placed with a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
from asking import asked

import partitioner
from partitioner.errors import ModelError
from tests import models

ROWS = 8
DEVICES = ["CPU:1", "CPU:2"]


def of_class_numbers(y_true: Any, y_pred: Any) -> Any:
    """A sparse loss without the name of one."""
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def model() -> keras.Model:
    keras.utils.set_random_seed(2)
    built = models.mlp()
    built.compile("sgd", of_class_numbers, jit_compile=False)
    return built


def test_what_the_loss_was_given_is_said() -> None:
    with pytest.raises(ModelError, match="cannot trace the train step") as caught:
        partitioner.plan(model(), devices=DEVICES, batch_size=ROWS, time_limit=2)
    assert caught.value.notes[-1] == f"the loss was given targets of float32 (batch, {models.CLASSES})"
    assert "example_targets" in str(caught.value.help)


def test_a_plan_from_a_file_is_placed_with_examples(tmp_path: Path) -> None:
    x, y = models.vectors(4 * ROWS)
    options: dict[str, Any] = {"batch_size": ROWS, "strategy": "layer-split", "time_limit": 2}
    partitioner.plan(model(), **asked(devices=DEVICES, example_targets=y[:1], **options)).save(tmp_path / "plan.json")
    plan = partitioner.Plan.load(tmp_path / "plan.json")
    with pytest.raises(ModelError, match="cannot trace the train step"):
        partitioner.place(model(), plan)
    unplaced = model()
    placed = partitioner.place(model(), plan, example_targets=y[:1])
    losses = [one.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0).history["loss"] for one in (placed, unplaced)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
