"""A step captured from a model as the compiler does it, for tests of what is made from it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.signature import input_specs, target_specs
from partitioner.capture.trace.trace import build, output_specs
from partitioner.ir.step import CapturedStep, StepKind
from tests.models import WIDTH

BATCH = 8


def capture(
    model: keras.Model,
    kind: StepKind = StepKind.TRAIN,
    *,
    batch_size: int = BATCH,
    targets: Any = None,
    weighted: bool = False,
    **options: Any,
) -> CapturedStep:
    """The step of a model; if that does not tell its inputs, it takes vectors of `tests.models`.

    `targets` are specs in place of those that the loss asks for; `options` are the loss and the optimizer, if the model
    has none.
    """
    x = input_specs(model, None if getattr(model, "inputs", None) else {"": (WIDTH,)})
    build(model, x)
    if kind is StepKind.PREDICT:
        return capture_step(model, kind, (x, None, None), batch_size=batch_size)
    objective = training_objective(model, **options)
    y = target_specs(output_specs(model, x), objective.loss) if targets is None else targets
    weights = tf.TensorSpec([None], "float32") if weighted else None
    return capture_step(model, kind, (x, y, weights), batch_size=batch_size, objective=objective)
