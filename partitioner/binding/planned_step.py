"""The step that a plan is made from: captured, kept for placing it right away, or traced again."""

from __future__ import annotations

import weakref
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
class _Planned:
    """What a model was last planned with, so that placing it right away need not trace it again.

    It must not hold the model, which would then never be let go of.

    Attributes:
        step: The captured step.
        loss: What it minimises; None in inference.
        optimizer: The one in the step; None in inference.
        fields: What the plan says of both.
        compiled: What Keras knew then of how the model was compiled.
    """

    step: CapturedStep
    loss: Any
    optimizer: Any
    fields: Mapping[str, str]
    compiled: Any

    def serves(self, model: keras.Model, plan: PlanDocument) -> bool:
        """Whether `plan` is a plan of this step, and the model was not compiled anew since."""
        return (
            self.compiled is _compile_config(model)
            and self.step.kind is (StepKind.TRAIN if plan.model.training else StepKind.PREDICT)
            and self.step.graph.fingerprint == plan.model.fingerprint
            and all(getattr(plan.model, name) == value for name, value in self.fields.items())
        )


_last_planned: weakref.WeakKeyDictionary[Any, _Planned] = weakref.WeakKeyDictionary()


def first_step(
    model: keras.Model, x: Any, example_targets: Any, objective: TrainingObjective | None, batch_size: int
) -> CapturedStep:
    """Capture the step to plan: training with an objective, else inference.

    Args:
        model: It is built if it is not yet.
        x: Specs of its inputs.
        example_targets: A batch of targets; None where the loss tells what they are like.
        objective: Loss and optimizer.
        batch_size: Rows that the op graph has.

    Raises:
        ModelError: The model cannot be traced.
    """
    build(model, x)
    if objective is None:
        return captured(model, StepKind.PREDICT, (x, None, None), batch_size=batch_size)
    if example_targets is not None:
        y = specs_like(tf.nest.map_structure(tf.convert_to_tensor, example_targets))
    else:
        y = target_specs(output_specs(model, x), objective.loss)
    return captured(model, StepKind.TRAIN, (x, y, None), batch_size=batch_size, objective=objective)


def captured(model: keras.Model, kind: StepKind, specs: tuple[Any, Any, Any], **options: Any) -> CapturedStep:
    """A step of the model as one replica runs it, though its variables may be mirrored by now.

    Raises:
        ModelError: The model cannot be traced.
    """
    with first_replica_only():
        return capture_step(model, kind, specs, **options)


def remember(model: keras.Model, step: CapturedStep, objective: TrainingObjective | None) -> None:
    """Keep the step that a plan was made from until the model is planned again, or is gone."""
    _last_planned[model] = _Planned(
        step=step,
        loss=objective and objective.loss,
        optimizer=objective and objective.optimizer,
        fields=objective_fields(objective) if objective else {},
        compiled=_compile_config(model),
    )


def step_of_plan(
    model: keras.Model, plan: PlanDocument, *, example_inputs: Any = None, example_targets: Any = None
) -> tuple[CapturedStep, TrainingObjective | None]:
    """The step the plan was made from, and what it minimises: as just captured, or traced again.

    Raises:
        ModelError: The model cannot be traced.
    """
    planned = _last_planned.get(model)
    if planned is not None and planned.serves(model, plan):
        return planned.step, _objective_of_plan(model, plan, loss=planned.loss, optimizer=planned.optimizer)
    objective = _objective_of_plan(model, plan, loss=plan.model.loss, optimizer=plan.model.optimizer)
    x = input_specs(model, plan.model.input_shapes, example_inputs)
    return first_step(model, x, example_targets, objective, plan.model.batch_size), objective


def compile_arguments(model: keras.Model, objective: TrainingObjective) -> dict[str, Any]:
    """What to compile the placed model with: the model's own arguments, loss and optimizer as planned."""
    own = _compile_config(model)
    arguments = dict(own.config) if own is not None and model.compiled else {}
    arguments.pop("jit_compile", None)
    return {**arguments, "loss": objective.loss, "optimizer": objective.optimizer}


def objective_fields(objective: TrainingObjective) -> dict[str, str]:
    """What a plan says of loss and optimizer."""
    return {
        "loss": objective.loss_name,
        "loss_origin": objective.loss_origin,
        "optimizer": objective.optimizer_name,
        "optimizer_origin": objective.optimizer_origin,
    }


def _objective_of_plan(
    model: keras.Model, plan: PlanDocument, *, loss: Any, optimizer: Any
) -> TrainingObjective | None:
    """What a plan's step minimises: as compiled where the plan says so, else with this loss and optimizer."""
    if not plan.model.training:
        return None
    return training_objective(
        model,
        loss=None if plan.model.loss_origin == "compiled" else loss,
        optimizer=None if plan.model.optimizer_origin == "compiled" else optimizer,
    )


def _compile_config(model: keras.Model) -> Any:
    """What Keras keeps of how a model was compiled, one object per call of `compile`; None if it was not."""
    return getattr(model, "_compile_config", None)
