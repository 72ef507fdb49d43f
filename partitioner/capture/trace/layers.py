"""Record which Keras layer's call made each op of a graph.

Op names do not say it: Keras numbers name scopes anew on every call, and `dense_1` is both the second layer and the
second call of the first. So the calls themselves are watched while tracing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from partitioner.ir.op_graph import Layer

_patching = threading.RLock()
# Layers of Keras that run functions or layers given to them.
_RUN_OTHER_CODE = ("FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper")


class LayerRecorder:
    """Collects, for one traced graph, the span of ops each layer call made. Spans nest; the innermost wins."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._graph: Any = None
        self._stack: list[Any] = []
        self._spans: list[tuple[int, int, str]] = []
        self._layers: dict[str, Layer] = {}

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Watch every layer call that adds ops to `graph`; a second recording replaces the first."""
        self._graph, self._stack, self._spans, self._layers = graph, [], [], {}
        layers: Any = keras.layers.Layer
        operations: Any = keras.Operation
        with _patching:
            layer_call, operation_call = layers.__call__, operations.__call__

            def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
                return self._record(layer, layer_call, args, kwargs)

            def call_operation(operation: Any, *args: Any, **kwargs: Any) -> Any:
                inside_layer = self._stack and not isinstance(self._stack[-1], keras.Model)
                if inside_layer or isinstance(operation, keras.layers.Layer):
                    return operation_call(operation, *args, **kwargs)
                return self._record(operation, operation_call, args, kwargs)

            layers.__call__, operations.__call__ = call_layer, call_operation
            try:
                yield
            finally:
                layers.__call__, operations.__call__ = layer_call, operation_call

    def _record(self, layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if tf.compat.v1.get_default_graph() is not self._graph:
            return call(layer, *args, **kwargs)  # inside the body of a loop or branch: the outer op stands for it
        inner = [outer.name for outer in [*self._stack, layer] if outer is not self._model]
        path = "/".join(inner) or self._model.name
        self._stack.append(layer)
        start = self._graph.num_operations()
        try:
            result = call(layer, *args, **kwargs)
        finally:
            self._stack.pop()
        self._spans.append((start, self._graph.num_operations(), path))
        self._layers.setdefault(path, _describe(path, layer, result))
        return result

    def layer_of(self) -> dict[str, str]:
        """Path of the innermost layer by op name; ops made outside every layer are left out."""
        ops = self._graph.get_operations()
        paths: dict[str, str] = {}
        for start, end, path in self._spans:  # a call ends before the call around it does
            for op in ops[start:end]:
                paths.setdefault(op.name, path)
        return paths

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers called, in the order their first call ended."""
        return tuple(self._layers.values())


def _describe(path: str, layer: Any, result: Any) -> Layer:
    shapes = [_shape_text(value) for value in tf.nest.flatten(result) if hasattr(value, "shape")]
    sublayers = layer._flatten_layers(include_self=False) if isinstance(layer, keras.layers.Layer) else ()
    return Layer(
        path=path,
        class_name=type(layer).__name__,
        output_shape=", ".join(shapes),
        is_container=any(True for _ in sublayers),
        keeps_rows_apart=_keeps_rows_apart(layer),
    )


def _keeps_rows_apart(layer: Any) -> bool:
    kind = type(layer)
    is_layer_of_keras = isinstance(layer, keras.layers.Layer) and kind.__module__.partition(".")[0] == "keras"
    return is_layer_of_keras and kind.__name__ not in _RUN_OTHER_CODE


def _shape_text(value: Any) -> str:
    if value.shape.rank is None:
        return "(?)"
    return "(" + ", ".join("None" if size is None else str(size) for size in value.shape.as_list()) + ")"
