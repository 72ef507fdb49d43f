"""Loss and optimizer of a placed model: shared with the unplaced model, or those of a saved training step."""

from __future__ import annotations

from typing import Any

import keras

from partitioner.errors import UsageError


def share_objective(placed: Any, original: Any, loss: Any, loss_weights: Any) -> None:
    """Let both models share the loss object: it keeps a metric per output, which fit() reports."""
    own = original._compile_config.config if original.compiled else {}
    if own and original.loss is loss and own.get("loss_weights") == loss_weights:
        placed._compile_loss = original._compile_loss
    if not own or original.loss is not loss or original.optimizer is not placed.optimizer:
        original.compile(optimizer=placed.optimizer, loss=loss, jit_compile=False)
    original._compile_loss = placed._compile_loss


def share_counting(placed: Any, original: Any) -> None:
    """Let both models share the metrics and the loss that `compile` made: a step of either counts in the same ones."""
    for name in ("_loss_tracker", "_compile_loss", "_compile_metrics"):
        object.__setattr__(placed, name, getattr(original, name))  # Keras would count what it tracks twice


def saved_objective(placed: Any, optimizer: Any, loss: Any) -> tuple[Any, Any]:
    """The optimizer and loss inside the saved training step, if the given optimizer and loss equal them.

    Raises:
        UsageError: They differ.
    """
    given: Any = keras.optimizers.get(optimizer)
    own: Any = placed.optimizer
    same_optimizer = given is own or given.get_config() == own.get_config()
    if not same_optimizer or _loss_name(loss) != _loss_name(placed.loss):
        raise UsageError(
            f"the saved training step holds {type(own).__name__} and {_loss_name(placed.loss)}",
            notes=["metrics and callbacks can be chosen anew, loss and optimizer cannot"],
            help="to train with others: place(build_model(), plan), then compile",
        )
    return own, placed.loss


def _loss_name(loss: Any) -> str:
    keras_loss = keras.losses.get(loss)
    return str(getattr(keras_loss, "name", getattr(keras_loss, "__name__", keras_loss)))
