"""Watch tapes while they differentiate: which op each op of a gradient belongs to.

A tape calls one gradient function for each op that it recorded, and TensorFlow hands that function the op's attributes,
not the op. So the op travels among them. What is recorded with a function of its own (a call of a `tf.function`, a
custom gradient) has that function watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

# TensorFlow has no public way to learn which op a tape differentiates.
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop, execute
from tensorflow.python.eager import record as recording

_patching = threading.RLock()
_MADE_BY = "_made_by"


class GradientRecorder:
    """Collects, for one traced graph, the ops that each gradient function made. Calls nest; the innermost wins."""

    def __init__(self) -> None:
        self._graph: Any = None
        self._spans: list[tuple[int, int, Any]] = []

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Watch tapes that add ops to `graph`; a second recording replaces the first."""
        self._graph, self._spans = graph, []
        with _patching, ExitStack() as undo:
            if pywrap_tfe.TFE_Py_TapeSetIsStopped():  # by tf.init_scope, where steps are traced on demand
                pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
                undo.callback(pywrap_tfe.TFE_Py_TapeSetStopOnThread)
            gradient = backprop._gradient_function
            undo.callback(pywrap_tfe.TFE_Py_RegisterGradientFunction, gradient)
            pywrap_tfe.TFE_Py_RegisterGradientFunction(self._watched_gradient(gradient))
            replace_while(undo, execute, "record_gradient", _naming_ops(execute.record_gradient))
            replace_while(undo, recording, "record_operation", self._watched_operation(recording.record_operation))
            yield

    def differentiates(self) -> dict[str, str]:
        """The op that each op of a gradient differentiates, by name; what tapes made between them is left out."""
        ops = self._graph.get_operations()
        found: dict[str, str] = {}
        for start, end, maker in self._spans:  # a call ends before the call around it does
            for op in ops[start:end]:
                found.setdefault(op.name, maker.name)
        return found

    def _of(self, maker: Any, run: Callable[..., Any], *arguments: Any) -> Any:
        if maker is None or maker.graph is not self._graph or tf.compat.v1.get_default_graph() is not self._graph:
            return run(*arguments)
        start = self._graph.num_operations()
        result = run(*arguments)
        self._spans.append((start, self._graph.num_operations(), maker))
        return result

    def _watched_gradient(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        def run(op_type: str, attributes: tuple[Any, ...], *arguments: Any) -> Any:
            maker = attributes[-1] if attributes[-2:-1] == (_MADE_BY,) else None
            return self._of(maker, gradient, op_type, attributes, *arguments)

        return run

    def _watched_operation(self, record: Callable[..., Any]) -> Callable[..., Any]:
        def run(op_type: str, outputs: Any, inputs: Any, backward_function: Any, forward_function: Any = None) -> Any:
            maker = _maker(outputs)

            def backward(*arguments: Any) -> Any:
                # As TensorFlow names the ops of its own gradients: an op that fails should say of which layer it is.
                scope = f"gradient_tape/{maker.name}".rpartition("/")[0] if maker else ""
                with tf.name_scope(f"{scope}/") if scope else nullcontext():
                    return self._of(maker, backward_function, *arguments)

            return record(op_type, outputs, inputs, backward, forward_function)

        return run


def replace_while(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the block of `undo` is left."""
    undo.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


def _maker(outputs: Any) -> Any:
    made = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return next((value.op for value in made if tf.is_symbolic_tensor(value)), None)


def _naming_ops(record: Callable[..., Any]) -> Callable[..., Any]:
    """What records an op on tapes, with the op itself as a last attribute: all that its gradient is given of it."""

    def run(op_type: str, inputs: Any, attributes: tuple[Any, ...], outputs: Any) -> Any:
        op = _maker(outputs)
        return record(op_type, inputs, attributes if op is None else (*attributes, _MADE_BY, op), outputs)

    return run
