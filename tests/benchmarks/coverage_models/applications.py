"""Every family of keras.applications, with small images."""

from __future__ import annotations

from functools import partial

import keras

from tests.benchmarks.coverage_models.registry import compiled, register_all

_SIDES = {
    "VGG16": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "MobileNetV3Large": 32,
    "ConvNeXtTiny": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "Xception": 71,
    "DenseNet121": 32,
    "InceptionV3": 75,
    "NASNetMobile": 32,
    "InceptionResNetV2": 75,
}


def application(name: str, side: int = 32) -> keras.Model:
    """A model of keras.applications with random weights."""
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)
    return compiled(model, loss="sparse_categorical_crossentropy")


register_all("applications", {name: partial(application, name, side) for name, side in _SIDES.items()})
