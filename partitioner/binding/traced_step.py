"""The step that a plan is made from: traced once, carried by the plan, and traced again for a plan from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import TrainingObjective, refuse_other_objective, training_objective
from partitioner.capture.trace.own_step import has_call, has_own_step
from partitioner.capture.trace.signature import input_specs, specs_like, target_specs
from partitioner.capture.trace.trace import build, output_specs
from partitioner.deferred_variables import deferred_values, handles_only, is_deferred, valueless_handle
from partitioner.emit.graph.mirrored_variable import first_replica_only
from partitioner.emit.graph.variables import contents
from partitioner.errors import ModelError
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import CapturedStep, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A model's step as traced.

    Attributes:
        step: The captured step.
        objective: Its loss and optimizer; None in inference, and where the model defines the step itself.
        model: The model.
        compiled: Keras' compile configuration of the model at that time.
        build: The function that built the model for planning; None if a model was given.
    """

    step: CapturedStep
    objective: TrainingObjective | None
    model: keras.Model
    compiled: Any
    build: Callable[[], keras.Model] | None = None

    def serves(self, model: keras.Model | Callable[[], keras.Model]) -> bool:
        """Whether it is a step of this model, and the model was not compiled anew since.

        For a function: whether it is a step of a model of its that was not placed yet, so that each placed model has
        variables of its own.
        """
        if isinstance(model, keras.Model):
            return self.model is model and self.compiled is _compile_config(model)
        return self.build == model and any(is_deferred(contents(variable)) for variable in self.model.variables)

    @property
    def num_parameters(self) -> int:
        """Number of weights of the model."""
        return sum(math.prod(variable.shape) for variable in self.model.weights)

    @property
    def objective_fields(self) -> dict[str, str]:
        """The fields of a plan about loss and optimizer."""
        objective = self.objective
        if objective is None:
            optimizers = ", ".join(type(optimizer).__name__ for optimizer in self.step.optimizers)
            return {"optimizer": optimizers, "optimizer_origin": "compiled"} if optimizers else {}
        return {
            "loss": objective.loss_name,
            "loss_origin": objective.loss_origin,
            "optimizer": objective.optimizer_name,
            "optimizer_origin": objective.optimizer_origin,
        }


@deferred_values()
@handles_only()
def trace(
    model: keras.Model,
    *,
    training: bool,
    loss: Any = None,
    optimizer: Any = None,
    batch_size: int,
    input_shapes: Mapping[str, tuple[int, ...]],
    example_inputs: Any = None,
    example_targets: Any = None,
) -> TracedStep:
    """Trace the step to plan. Variables made meanwhile, such as an optimizer's slots, are deferred.

    Args:
        model: It is built if it is not yet.
        training: Whether to trace a training step, else inference.
        loss: In place of the loss that the model was compiled with.
        optimizer: In place of its optimizer.
        batch_size: Rows of the op graph.
        input_shapes: Sizes of inputs, without the batch, where the model does not say.
        example_inputs: A batch of inputs, where the model does not say their shapes and dtypes.
        example_targets: A batch of targets, where the loss does not say their shapes and dtypes.

    Raises:
        ModelError: The model cannot be traced.
        UsageError: The sizes contradict the model.
    """
    x = input_specs(model, dict(input_shapes), example_inputs)
    y = None if example_targets is None else specs_like(tf.nest.map_structure(tf.convert_to_tensor, example_targets))
    objective = None
    if not training:
        build(model, x)
        step = captured(model, StepKind.PREDICT, (x, None, None), batch_size=batch_size)
    elif has_own_step(model, StepKind.TRAIN):
        refuse_other_objective(model, loss, optimizer)
        step = _own_step(model, x, y, batch_size)
    else:
        objective = training_objective(model, loss=loss, optimizer=optimizer)
        build(model, x)
        y = target_specs(output_specs(model, x), objective.loss) if y is None else y
        step = captured(model, StepKind.TRAIN, (x, y, None), batch_size=batch_size, objective=objective)
    return TracedStep(step=step, objective=objective, model=model, compiled=_compile_config(model))


def _own_step(model: keras.Model, x: Any, y: Any, batch_size: int) -> CapturedStep:
    """The training step that a model defines itself.

    Nothing says whether it takes targets: it gets the given ones, else those of the loss that the model was compiled
    with, else none, else some like its outputs.
    """
    guesses = [y] if y is not None else [None]
    if y is None and has_call(model):
        like_outputs = target_specs(output_specs(model, x), getattr(model, "loss", None))
        guesses = [like_outputs, None] if getattr(model, "loss", None) is not None else [None, like_outputs]
    for guess in guesses[:-1]:
        with suppress(ModelError):
            return captured(model, StepKind.TRAIN, (x, guess, None), batch_size=batch_size)
    return captured(model, StepKind.TRAIN, (x, guesses[-1], None), batch_size=batch_size)


def captured(model: keras.Model, kind: StepKind, specs: tuple[Any, Any, Any], **options: Any) -> CapturedStep:
    """Trace a step of the model as a single replica runs it, even if its variables are mirrored by now.

    Raises:
        ModelError: The model cannot be traced.
    """
    with first_replica_only(), deferred_values(), handles_only():
        step = capture_step(model, kind, specs, **options)
    # Handles keep values, and those of variables that move would never be freed.
    valueless = {name: valueless_handle(variable.shape, variable.dtype) for name, variable in step.variables.items()}
    return replace(step, captures={**step.captures, **valueless})


def traced_again(
    model: keras.Model, plan: PlanDocument, *, example_inputs: Any = None, example_targets: Any = None
) -> TracedStep:
    """Trace the step again for a plan from a file, or for a model that was built or compiled anew.

    Raises:
        ModelError: The model cannot be traced.
    """
    info = plan.model
    return trace(
        model,
        training=info.training,
        loss=None if info.loss_origin == "compiled" else info.loss,
        optimizer=None if info.optimizer_origin == "compiled" else info.optimizer,
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
