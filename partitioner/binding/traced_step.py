"""The step that a plan is made from: traced once, carried by the plan, and traced again for a plan from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import TrainingObjective, training_objective
from partitioner.capture.trace.signature import input_specs, specs_like, target_specs
from partitioner.capture.trace.trace import build, output_specs
from partitioner.emit.graph.mirrored_variable import first_replica_only
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import CapturedStep, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A model's step as traced.

    Attributes:
        step: The captured step.
        objective: Its loss and optimizer; None in inference.
        model: The model.
        compiled: Keras' compile configuration of the model at that time.
    """

    step: CapturedStep
    objective: TrainingObjective | None
    model: keras.Model
    compiled: Any

    def serves(self, model: keras.Model) -> bool:
        """Whether it is a step of this model, and the model was not compiled anew since."""
        return self.model is model and self.compiled is _compile_config(model)

    @property
    def objective_fields(self) -> dict[str, str]:
        """The fields of a plan about loss and optimizer."""
        objective = self.objective
        if objective is None:
            return {}
        return {
            "loss": objective.loss_name,
            "loss_origin": objective.loss_origin,
            "optimizer": objective.optimizer_name,
            "optimizer_origin": objective.optimizer_origin,
        }


def trace(
    model: keras.Model,
    *,
    objective: TrainingObjective | None,
    batch_size: int,
    input_shapes: Mapping[str, tuple[int, ...]],
    example_inputs: Any = None,
    example_targets: Any = None,
) -> TracedStep:
    """Trace the step to plan: training with an objective, else inference.

    Args:
        model: It is built if it is not yet.
        objective: Loss and optimizer.
        batch_size: Rows of the op graph.
        input_shapes: Sizes of inputs, without the batch, where the model does not say.
        example_inputs: A batch of inputs, where the model does not say their shapes and dtypes.
        example_targets: A batch of targets, where the loss does not say their shapes and dtypes.

    Raises:
        ModelError: The model cannot be traced.
        UsageError: The sizes contradict the model.
    """
    x = input_specs(model, dict(input_shapes), example_inputs)
    build(model, x)
    if objective is None:
        step = captured(model, StepKind.PREDICT, (x, None, None), batch_size=batch_size)
    else:
        if example_targets is not None:
            y = specs_like(tf.nest.map_structure(tf.convert_to_tensor, example_targets))
        else:
            y = target_specs(output_specs(model, x), objective.loss)
        step = captured(model, StepKind.TRAIN, (x, y, None), batch_size=batch_size, objective=objective)
    return TracedStep(step=step, objective=objective, model=model, compiled=_compile_config(model))


def captured(model: keras.Model, kind: StepKind, specs: tuple[Any, Any, Any], **options: Any) -> CapturedStep:
    """Trace a step of the model as a single replica runs it, even if its variables are mirrored by now.

    Raises:
        ModelError: The model cannot be traced.
    """
    with first_replica_only():
        return capture_step(model, kind, specs, **options)


def traced_again(
    model: keras.Model, plan: PlanDocument, *, example_inputs: Any = None, example_targets: Any = None
) -> TracedStep:
    """Trace the step again for a plan from a file, or for a model that was built or compiled anew.

    Raises:
        ModelError: The model cannot be traced.
    """
    info = plan.model
    objective = None
    if info.training:
        objective = training_objective(
            model,
            loss=None if info.loss_origin == "compiled" else info.loss,
            optimizer=None if info.optimizer_origin == "compiled" else info.optimizer,
        )
    return trace(
        model,
        objective=objective,
        batch_size=info.batch_size,
        input_shapes=info.input_shapes,
        example_inputs=example_inputs,
        example_targets=example_targets,
    )


def compile_arguments(model: keras.Model, objective: TrainingObjective) -> dict[str, Any]:
    """Arguments to compile the placed model with: the model's own arguments, loss and optimizer as planned."""
    own = _compile_config(model)
    arguments = dict(own.config) if own is not None and model.compiled else {}
    arguments.pop("jit_compile", None)
    return {**arguments, "loss": objective.loss, "optimizer": objective.optimizer}


def _compile_config(model: keras.Model) -> Any:
    """Keras' compile configuration of a model, a new object for each call of `compile`; None if it was not called."""
    return getattr(model, "_compile_config", None)
