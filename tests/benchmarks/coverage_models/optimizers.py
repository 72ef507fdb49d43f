"""A perceptron under every optimizer, and under every setting that changes how an optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import layers
from keras import optimizers as of_keras

from tests.benchmarks.coverage_models.registry import classifier, register_all


def perceptron(make_optimizer: Callable[[], Any]) -> keras.Model:
    """An embedding, so that some gradients are sparse, and dense layers."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(20, 4)(inputs))
    for _ in range(3):
        x = layers.Dense(16, activation="relu")(x)
    return classifier(inputs, x, make_optimizer())


def _schedules() -> dict[str, Any]:
    schedules = of_keras.schedules
    return {
        "cosine": schedules.CosineDecay(1e-2, 10, warmup_target=2e-2, warmup_steps=2),
        "cosine-restarts": schedules.CosineDecayRestarts(1e-2, 3),
        "exponential": schedules.ExponentialDecay(1e-2, 2, 0.9, staircase=True),
        "piecewise": schedules.PiecewiseConstantDecay([2, 4], [1e-2, 5e-3, 1e-3]),
        "polynomial": schedules.PolynomialDecay(1e-2, 10, power=2.0, cycle=True),
        "inverse-time": schedules.InverseTimeDecay(1e-2, 2, 0.5),
    }


def _multi() -> Any:
    return of_keras.Adam(1e-2, clipvalue=0.1, weight_decay=1e-3, amsgrad=True)


_NAMES = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam")
_NAMES += ("RMSprop", "SGD", "ScheduleFreeAdamW")

_SETTINGS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: of_keras.SGD(1e-2, momentum=0.9, nesterov=True),
    "rmsprop-centered": lambda: of_keras.RMSprop(1e-2, momentum=0.5, centered=True),
    "clipnorm": lambda: of_keras.Adam(1e-2, clipnorm=0.1),
    "global-clipnorm": lambda: of_keras.Adam(1e-2, global_clipnorm=0.1),
    "amsgrad-clipvalue-decay": _multi,
    "ema": lambda: of_keras.Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "accumulation": lambda: of_keras.Adam(1e-2, gradient_accumulation_steps=2),
    "accumulation-ema-clip": lambda: of_keras.SGD(1e-2, gradient_accumulation_steps=2, use_ema=True, global_clipnorm=1),
    "loss-scale": lambda: of_keras.LossScaleOptimizer(of_keras.Adam(1e-2), initial_scale=1024.0),
    "loss-scale-fixed": lambda: of_keras.SGD(1e-2, loss_scale_factor=128.0),
}


def _of_name(name: str) -> Any:
    return getattr(of_keras, name)(learning_rate=1e-2)


def _scheduled(name: str) -> Any:
    return of_keras.SGD(_schedules()[name])


_BUILDERS = {name: partial(_of_name, name) for name in _NAMES if hasattr(of_keras, name)}
_BUILDERS |= _SETTINGS
_BUILDERS |= {f"schedule-{name}": partial(_scheduled, name) for name in _schedules()}
register_all("optimizer", {name: partial(perceptron, make) for name, make in _BUILDERS.items()}, modes=("training",))
