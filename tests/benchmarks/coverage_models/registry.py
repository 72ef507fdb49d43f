"""What a model of the coverage benchmark is, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

MODES = ("training", "inference")
ROWS = 4
CLASSES = 5


@dataclass(frozen=True, kw_only=True)
class Built:
    """A compiled model, and what it does not say itself.

    Attributes:
        model: The model.
        inputs: A batch of inputs, where the model does not say their shapes and dtypes.
        targets: A batch of targets, where the loss does not say their shapes.
        input_shape: Sizes of an only input, in place of a batch.
    """

    model: keras.Model
    inputs: Any = None
    targets: Any = None
    input_shape: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of the benchmark.

    Attributes:
        build: Makes the compiled model.
        modes: `training`, `inference` or both.
        num_devices: How many devices it is split over.
        batch_size: Rows of a batch.
    """

    build: Callable[[], keras.Model | Built]
    modes: Sequence[str] = MODES
    num_devices: int = 2
    batch_size: int = ROWS

    def built(self) -> Built:
        """The model, built anew."""
        made = self.build()
        return made if isinstance(made, Built) else Built(model=made)


MODELS: dict[str, Entry] = {}
"""All models, by `family/name`."""


class NotInstalledError(Exception):
    """A package that a model needs is not installed."""


def register(name: str, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put a builder into `MODELS`; the options are fields of `Entry`."""

    def put(build: Callable[[], Any]) -> Callable[[], Any]:
        if name in MODELS:
            raise ValueError(f"two models are named {name!r}")
        MODELS[name] = Entry(build=build, **options)
        return build

    return put


def register_all(family: str, builders: Mapping[str, Callable[[], Any]], **options: Any) -> None:
    """Put builders into `MODELS`, by their names in a family."""
    for name, build in builders.items():
        register(f"{family}/{name}", **options)(build)


def classifier(inputs: Any, features: Any, optimizer: Any = "adam", **options: Any) -> keras.Model:
    """Features of a row to classes, compiled; the options are those of the last layer."""
    scores = keras.layers.Dense(CLASSES, name="scores", **options)(features)
    return compiled(keras.Model(inputs, scores), optimizer)


def compiled(model: keras.Model, optimizer: Any = "adam", loss: Any = None) -> keras.Model:
    """The model with a loss: logits against class numbers, unless another is given."""
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


@dataclass(frozen=True)
class Random:
    """Random batches, always the same.

    Attributes:
        rows: Rows of a batch.
    """

    rows: int = ROWS
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def normal(self, *sizes: int) -> np.ndarray:
        """Normal floats."""
        return self.generator.standard_normal((self.rows, *sizes), np.float32)

    def below(self, limit: int, *sizes: int) -> np.ndarray:
        """Whole numbers below a limit."""
        return self.generator.integers(0, limit, (self.rows, *sizes)).astype(np.int32)
