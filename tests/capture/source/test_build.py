"""Functions that build models: what is refused, and that what they build has no values."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import pytest

from partitioner.capture.source.build import built
from partitioner.errors import ModelError, UsageError
from tests.models import MODELS, dense_stack
from tests.values import with_values


def test_a_model_stays_itself() -> None:
    model = MODELS["mlp"]()
    assert built(model) is model


@pytest.mark.parametrize("build", [dense_stack, partial(dense_stack, 2), lambda: dense_stack(4)])
def test_what_a_function_builds_has_no_values(build: Any) -> None:
    model = built(build)
    assert model.variables
    assert not with_values(model.variables)


def test_a_class_of_models_is_called() -> None:
    class Small(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="small")

    assert built(Small).name == "small"


def needs_depth(depth: int) -> keras.Model:
    return dense_stack(depth)


def forgets() -> Any:
    dense_stack()


def gives_layer() -> Any:
    return keras.layers.Dense(3)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (needs_depth, UsageError, "needs_depth cannot be called without arguments: missing"),
        (forgets, ModelError, "forgets() returned None, expected a keras.Model"),
        (gives_layer, ModelError, "gives_layer() returned a Dense, expected a keras.Model"),
        (keras.layers.Dense(3), UsageError, "the model is a Dense, expected a keras.Model or a function"),
        ("model.py", UsageError, "the model is a str, expected a keras.Model or a function"),
    ],
)  # fmt: skip
def test_refusals(build: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        built(build)
    assert str(raised.value).startswith(words)


def test_errors_of_the_function_are_its_own() -> None:
    def fails() -> keras.Model:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        built(fails)
