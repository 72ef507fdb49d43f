"""A model that is placed twice: the later placement has its variables, and the earlier one must not train copies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import partitioner
from tests.twins import cpus

ONE, OTHER = cpus(2)
X, Y = np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    made = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="hidden"), layers.Dense(1, name="scores")])
    made.compile("sgd", "mse")
    return made


@pytest.fixture(scope="module")
def plans(model: keras.Model) -> list[partitioner.Plan]:
    pins = [{"hidden": ONE, "scores": OTHER}, {"hidden": OTHER, "scores": ONE}]
    return [
        partitioner.plan(model, cpus(2), batch_size=8, constraints=partitioner.Constraints(pins=pinned), time_limit=1)
        for pinned in pins
    ]


USES = {
    "fit": lambda placed: placed.fit(X, Y, verbose=0),
    "train_on_batch": lambda placed: placed.train_on_batch(X, Y),
    "evaluate": lambda placed: placed.evaluate(X, Y, verbose=0),
    "predict": lambda placed: placed.predict(X, verbose=0),
    "call": lambda placed: placed(X),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_earlier_placement_says_that_its_variables_have_moved(
    model: keras.Model, plans: list[partitioner.Plan], use: Any
) -> None:
    """It trained and showed the variables that the model had before, without a word."""
    earlier = partitioner.place(model, plans[0])
    use(earlier)
    later = partitioner.place(model, plans[1])
    with pytest.raises(partitioner.UsageError, match="placed again, and its variables have moved"):
        use(earlier)
    use(later)
    again = partitioner.place(model, plans[0])
    use(again)


def test_two_placements_by_one_plan_share_the_variables(model: keras.Model, plans: list[partitioner.Plan]) -> None:
    first, second = (partitioner.place(model, plans[0]) for _ in range(2))
    first.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(first.predict(X, verbose=0), second.predict(X, verbose=0))
