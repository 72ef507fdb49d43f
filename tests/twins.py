"""Equal models, one of them to be placed: what is in them, how they train, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np


def cpus(count: int) -> list[str]:
    """Names of so many of the logical CPUs, without the first one."""
    return [f"CPU:{index + 1}" for index in range(count)]


def equal_pair(build: Callable[[], keras.Model]) -> tuple[keras.Model, keras.Model]:
    """Two models with the same weights."""
    keras.utils.set_random_seed(3)
    first = build()
    keras.utils.set_random_seed(3)
    return first, build()


def variables(placed: Any) -> list[Any]:
    """Everything that a step may change, by Keras' variables."""
    steps = [placed.program.step(kind, specs) for kind, specs in placed.program.signatures()]
    used = {id(variable) for step in steps for variable in step.variables.values()}
    generators = [g.state for layer in placed.model._flatten_layers() for g in getattr(layer, "_seed_generators", ())]
    unused = {id(state) for state in generators} - used  # an LSTM without dropout has one for nothing
    return [v for v in (*placed.model.variables, *placed.optimizer.variables, *generators) if id(v) not in unused]


def weights(model: Any) -> np.ndarray:
    """All weights in one vector."""
    return as_one(model.get_weights())


def as_one(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """All numbers of the arrays in one vector."""
    return np.concatenate([array.ravel() for array in arrays])


def losses(model: Any, batch: tuple[Any, Any], steps: int = 3) -> list[float]:
    """Of training steps on the same batch."""
    return [float(model.train_on_batch(*batch, return_dict=True)["loss"]) for _ in range(steps)]


def relative(found: Any, expected: Any) -> float:
    """Norm of the difference over the norm of what is expected (Frobenius); 0 where both are 0."""
    difference = float(np.linalg.norm(np.float64(found) - np.float64(expected)))
    return difference and difference / float(np.linalg.norm(np.float64(expected)))
