"""Methods that a model has beside its steps, such as `generate`: each layer runs on the device that has its weights.

Such a method is no part of a plan, and may do anything between its calls of layers. What it does outside of layers, and
what layers without weights do, is left to TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

_CALLS = ("call", "quantized_call")
_changing = threading.RLock()  # a layer has its calls changed by one thread at a time


def on_devices_of_layers(method: Callable[..., Any], model: keras.Model) -> Callable[..., Any]:
    """`method` of a placed model's unplaced model, as one that runs each layer where its weights are.

    XLA, which compiles for one device, is off meanwhile if the weights are on several.
    """

    @functools.wraps(method)
    def placed(*arguments: Any, **options: Any) -> Any:
        with _changing, layers_on_their_devices(model):
            return method(*arguments, **options)

    return placed


@contextlib.contextmanager
def layers_on_their_devices(model: Any) -> Iterator[None]:
    """Run each layer of `model` on the device of its weights, where all of them are on one; functions are traced so."""
    layers = [layer for layer in model._flatten_layers() if layer.weights]
    devices = {id(layer): {weight.value.device for weight in layer.weights} for layer in layers}
    is_split = len(set().union(*devices.values())) > 1
    jit_compile = model.jit_compile
    with contextlib.ExitStack() as stack:
        for layer in layers:
            if is_split and len(devices[id(layer)]) == 1:
                stack.enter_context(_on(layer, *devices[id(layer)]))
        if is_split:
            model.jit_compile = False
            stack.callback(setattr, model, "jit_compile", jit_compile)
        yield


@contextlib.contextmanager
def _on(layer: Any, device: str) -> Iterator[None]:
    """Have calls of one layer run on a device."""

    def moved(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def on_device(*arguments: Any, **options: Any) -> Any:
            with tf.device(device):
                return call(*arguments, **options)

        return on_device

    # Not by Keras' __setattr__, which tracks what a layer gets, and refuses it once the layer is built.
    own = vars(layer)
    before = {name: own[name] for name in _CALLS if name in own}  # such as those of a method around this one
    own.update({name: moved(getattr(layer, name)) for name in _CALLS})
    try:
        yield
    finally:
        for name in _CALLS:
            del own[name]
        own.update(before)
