"""Training goes on under another plan: saved on two devices, loaded on three, the losses of one that never stopped."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import partitioner
from tests.models import DATA, MODELS

BATCH, EPOCHS = 8, 2


def built() -> keras.Model:
    keras.utils.set_random_seed(0)
    return MODELS["mlp"]()


def plan_on(model: keras.Model, devices: str) -> partitioner.Plan:
    return partitioner.plan(model, devices, batch_size=BATCH, strategy="layer-split", time_limit=4)


def losses(model: keras.Model) -> list[float]:
    x, y = DATA["mlp"](4 * BATCH)
    return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("saved", ["weights", "keras"])
def test_training_goes_on_under_another_plan(tmp_path: Path, saved: str) -> None:
    uninterrupted = built()
    expected = [*losses(uninterrupted), *losses(uninterrupted)]

    first_model = built()
    first = partitioner.place(first_model, plan_on(first_model, "CPU:0-1"))
    seen = losses(first)
    if saved == "weights":
        first.save_weights(tmp_path / "last.weights.h5")
        second_model = built()
        second = partitioner.place(second_model, plan_on(second_model, "CPU:1-3"))
        second.load_weights(tmp_path / "last.weights.h5")
    else:
        first.save(tmp_path / "last.keras")
        second_model = keras.models.load_model(tmp_path / "last.keras")
        second = partitioner.place(second_model, plan_on(second_model, "CPU:1-3"))
    np.testing.assert_allclose([*seen, *losses(second)], expected, rtol=1e-5)


def test_a_plan_goes_on_elsewhere_by_other_names() -> None:
    """The plan of two devices, on two others, which share the variables of the first."""
    model = built()
    plan = plan_on(model, "CPU:0-1")
    first = partitioner.place(model, plan)
    seen = losses(first)
    elsewhere = partitioner.place(model, plan.retargeted({"CPU:0": "CPU:3", "CPU:1": "CPU:2"}))
    assert partitioner.verify(model, elsewhere).passed
    uninterrupted = built()
    expected = [*losses(uninterrupted), *losses(uninterrupted)]
    np.testing.assert_allclose(seen, expected[:EPOCHS], rtol=1e-5)
    np.testing.assert_allclose(losses(elsewhere), expected[EPOCHS:], rtol=1e-5)
