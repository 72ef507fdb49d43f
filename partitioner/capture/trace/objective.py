"""The objective of training: loss and optimizer, compiled into the model, given as options, or assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from partitioner.errors import UsageError
from partitioner.spelling import argument

DEFAULT_LOSS = "mean_squared_error"
DEFAULT_OPTIMIZER = "adam"


@dataclass(frozen=True, kw_only=True)
class TrainingObjective:
    """Loss and optimizer of a training step, each with where it comes from: compiled, option or assumed.

    `compute_loss(x, y, y_pred, sample_weight, training)` returns the scalar loss, regularisation included.
    Computing it may update metrics of `model` (Keras keeps a metric per loss).
    """

    model: keras.Model
    loss: Any
    loss_origin: str
    optimizer: Any
    optimizer_origin: str
    compute_loss: Callable[[Any, Any, Any, Any, bool], Any]

    @property
    def has_metrics(self) -> bool:
        """Whether `model` was compiled with metrics, which look at its outputs."""
        return getattr(self.model, "_compile_metrics", None) is not None

    @property
    def loss_name(self) -> str:
        """The loss as people write it."""
        return _loss_text(self.loss)

    @property
    def optimizer_name(self) -> str:
        """The optimizer's class name."""
        return type(self.optimizer).__name__


def training_objective(model: keras.Model, *, loss: Any = None, optimizer: Any = None) -> TrainingObjective:
    """Decide loss and optimizer: the options, else what `model` was compiled with, else the defaults.

    Raises:
        UsageError: An option names a loss or optimizer that Keras does not know.
    """
    compiled = bool(getattr(model, "compiled", False))
    chosen_optimizer, optimizer_origin = _optimizer(model, optimizer, compiled)
    if loss is None and compiled and model.loss is not None:
        return TrainingObjective(
            model=model,
            loss=model.loss,
            loss_origin="compiled",
            optimizer=chosen_optimizer,
            optimizer_origin=optimizer_origin,
            compute_loss=lambda x, y, p, w, training: model._compute_loss(
                x=x, y=y, y_pred=p, sample_weight=w, training=training
            ),
        )
    origin = "assumed" if loss is None else "option"
    chosen_loss = DEFAULT_LOSS if loss is None else loss
    return TrainingObjective(
        model=model,
        loss=chosen_loss,
        loss_origin=origin,
        optimizer=chosen_optimizer,
        optimizer_origin=optimizer_origin,
        compute_loss=_sum_over_outputs(model, chosen_loss),
    )


def refuse_other_objective(model: keras.Model, loss: Any, optimizer: Any) -> None:
    """Refuse a loss or an optimizer for a model whose own training step says what it uses.

    Raises:
        UsageError: One was given.
    """
    for name, value in (("loss", loss), ("optimizer", optimizer)):
        if value is not None:
            raise UsageError(
                f"{type(model).__name__} defines its own train_step, which takes no other {name}",
                help=f"leave out {argument(name)}, or plan inference: {argument('training', False)}",
            )


def _optimizer(model: keras.Model, option: Any, compiled: bool) -> tuple[Any, str]:
    if option is None and compiled and model.optimizer is not None:
        return model.optimizer, "compiled"
    origin = "assumed" if option is None else "option"
    try:
        return keras.optimizers.get(DEFAULT_OPTIMIZER if option is None else option), origin
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"Keras knows no optimizer {option!r}",
            help="one of adam, adamw, sgd, rmsprop, lion, adafactor, ...",
        ) from error


class _FunctionLoss(keras.losses.Loss):
    """A plain loss function with the weighting and averaging every Keras loss has."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_true, y_pred)


def _loss_object(loss: Any) -> keras.losses.Loss:
    try:
        loss_object: Any = keras.losses.get(loss)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"Keras knows no loss {loss!r}",
            help="e.g. mean_squared_error, sparse_categorical_crossentropy, binary_crossentropy",
        ) from error
    return loss_object if isinstance(loss_object, keras.losses.Loss) else _FunctionLoss(loss_object)


def _sum_over_outputs(model: keras.Model, loss: Any) -> Callable[[Any, Any, Any, Any, bool], Any]:
    loss_object: Any = _loss_object(loss)

    def compute_loss(x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool) -> Any:
        parts: list[Any] = [
            loss_object(target, output, sample_weight=sample_weight)
            for target, output in zip(tf.nest.flatten(y), tf.nest.flatten(y_pred), strict=True)
        ]
        parts += [tf.cast(extra, parts[0].dtype) for extra in model.losses]
        return parts[0] if len(parts) == 1 else tf.add_n(parts)

    return compute_loss


def _loss_text(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    if isinstance(loss, dict):
        return ", ".join(f"{key}: {_loss_text(part)}" for key, part in loss.items())
    if isinstance(loss, (list, tuple)):
        return ", ".join(_loss_text(part) for part in loss)
    return getattr(loss, "__name__", None) or getattr(loss, "name", None) or type(loss).__name__
