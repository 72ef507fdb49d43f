"""A step captured from a model as the compiler does it, for tests of what is made from it."""

from __future__ import annotations

from typing import Any

import keras

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.signature import input_specs, target_specs
from partitioner.capture.trace.trace import build, output_specs
from partitioner.ir.step import CapturedStep, StepKind

BATCH = 8


def capture(model: keras.Model, kind: StepKind = StepKind.TRAIN, **options: Any) -> CapturedStep:
    x = input_specs(model, options.pop("input_shapes", None))
    build(model, x)
    if kind is StepKind.PREDICT:
        return capture_step(model, kind, (x, None, None), batch_size=BATCH)
    objective = training_objective(model, **options)
    y = target_specs(output_specs(model, x), objective.loss)
    return capture_step(model, kind, (x, y, None), batch_size=BATCH, objective=objective)
