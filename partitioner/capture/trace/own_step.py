"""Steps that a model defines itself by overriding `train_step` or `test_step`, and what is watched while they run.

Keras' own step is traced piece by piece. Here the model's code is one piece: gradients by any tape, several optimizers,
penalties on gradients. So what TensorFlow and Keras do for it is recorded: which ops make gradients, and what each
optimizer updates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.trace.gradients import replace_while
from partitioner.capture.trace.predicate import predicated_writes
from partitioner.ir.op_graph import Phase
from partitioner.ir.step import StepKind

_METHODS = {StepKind.TRAIN: "train_step", StepKind.EVALUATE: "test_step"}
_patching = threading.RLock()


def has_own_step(model: Any, kind: StepKind) -> bool:
    """Whether a model overrides Keras' step of this kind. A placed model stands for the model in it."""
    method, own = _METHODS.get(kind), getattr(model, "model", None) if getattr(model, "is_placed", False) else model
    return method is not None and own is not None and getattr(type(own), method) is not getattr(keras.Model, method)


def kinds_of_steps(model: keras.Model) -> frozenset[StepKind]:
    """The kinds of step that a model can do: one that defines its training need neither have outputs nor a loss."""
    own = {kind for kind in StepKind if has_own_step(model, kind)}
    if not own:
        return frozenset(StepKind)
    by_loss = {StepKind.EVALUATE, StepKind.TRAIN} if getattr(model, "loss", None) is not None else set()
    return frozenset(own | by_loss | ({StepKind.PREDICT} if has_call(model) else set()))


def has_call(model: keras.Model) -> bool:
    """Whether a model can be called; one that only trains other models need not define `call`."""
    return type(model).call is not keras.Model.call


def run_own_step(model: keras.Model, kind: StepKind, x: Any, y: Any, sample_weight: Any) -> Any:
    """The logs of the model's own step, given data as `fit` gives it."""
    return getattr(model, _METHODS[kind])(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))


@dataclass(frozen=True, slots=True)
class Update:
    """A call of an optimizer's `apply`: its gradients, and the variables that they belong to."""

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]


class StepRecorder:
    """Records which ops of a traced graph are gradients and updates. Each recording replaces the one before."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, Phase]] = []
        self.updates: list[Update] = []
        self._graph: Any = None
        self._is_inside = False

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Watch tapes and optimizers that add ops to `graph`."""
        self._graph, self.spans, self.updates = graph, [], []
        with _patching, ExitStack() as undo:
            for method in ("gradient", "jacobian", "batch_jacobian"):
                replace_while(undo, tf.GradientTape, method, self._differentiating(getattr(tf.GradientTape, method)))
            for kind in _optimizer_classes():
                replace_while(undo, kind, "apply", self._updating(vars(kind)["apply"]))
            yield

    @contextmanager
    def _span(self, phase: Phase) -> Iterator[None]:
        start = self._graph.num_operations()
        try:
            yield
        finally:
            self.spans.append((start, self._graph.num_operations(), phase))

    def _is_watched(self) -> bool:
        return tf.compat.v1.get_default_graph() is self._graph

    def _differentiating(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            with self._span(Phase.BACKWARD) if self._is_watched() else nullcontext():
                return method(*arguments, **options)

        return run

    def _updating(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def run(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._is_inside or not self._is_watched():
                return apply(optimizer, grads, trainable_variables)
            grads = list(grads)
            variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
            if not optimizer.built:
                optimizer.build(variables)
            self.updates.append(Update(optimizer, tuple(grads), tuple(variables)))
            self._is_inside = True
            try:
                with self._span(Phase.UPDATE), predicated_writes():
                    return apply(optimizer, grads, variables)
            finally:
                self._is_inside = False

        return run


def _optimizer_classes() -> list[type]:
    """The classes of optimizers that define `apply`: Keras' base, and those that override it, such as loss scaling."""
    kinds: list[type] = [*keras.optimizers.Optimizer.__mro__]
    found = [keras.optimizers.Optimizer]
    while found:
        found = [inner for kind in found for inner in kind.__subclasses__()]
        kinds += found
    return [kind for kind in dict.fromkeys(kinds) if "apply" in vars(kind)]
