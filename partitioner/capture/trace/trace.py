"""Trace one step of a Keras model into TensorFlow's graph."""

from __future__ import annotations

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.source.module_file import described, shown
from partitioner.capture.trace.layers import LayerRecorder
from partitioner.capture.trace.objective import TrainingObjective
from partitioner.capture.trace.predicate import predicated_writes
from partitioner.errors import ModelError, PartitionError
from partitioner.ir.op_graph import Layer
from partitioner.ir.step import StepKind
from partitioner.spelling import argument

_NOT_THE_USERS = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A step as TensorFlow traced it.

    Attributes:
        graph: The FuncGraph; its batch size is open.
        inputs: Placeholders of the flattened arguments.
        outputs: Tensors of `graph`, keyed like `CapturedStep.outputs`.
        scaled_loss: The tensor that is differentiated: the loss, scaled if the optimizer asks for it; None without a
            loss.
        seed: The gradient of `scaled_loss` by itself, where the backward pass starts; None without a loss.
        trainable: The variables that the gradients belong to.
        layer_of: Layer path by op name.
        layers: The layers called.
        num_forward: Number of ops made before the first gradient op.
        num_backward: Number of ops after these that belong to the gradients; the rest updates.
    """

    graph: Any
    inputs: tuple[Any, ...]
    outputs: dict[str, Any]
    scaled_loss: Any
    seed: Any
    trainable: tuple[Any, ...]
    layer_of: dict[str, str]
    layers: tuple[Layer, ...]
    num_forward: int
    num_backward: int


def trace_step(
    model: keras.Model,
    kind: StepKind,
    specs: tuple[Any, Any, Any],
    objective: TrainingObjective | None = None,
) -> Trace:
    """Trace `model` on `specs`: structures of TensorSpec for (x, y, sample_weight), or None for any of them.

    Args:
        model: Any Keras model; it is built if it is not yet.
        kind: What to compute.
        specs: What to compute it on.
        objective: Loss and optimizer, for every kind but PREDICT.

    Raises:
        ModelError: TensorFlow cannot trace the model; the user's own line and TensorFlow's reason are in it.
    """
    build(model, specs[0])
    trainable: tuple[Any, ...] = tuple(model.trainable_variables) if kind is StepKind.TRAIN else ()
    if kind is StepKind.TRAIN and not trainable:
        raise ModelError(
            f"the model {model.name!r} has no trainable variables, so it has no training step",
            help=f"plan its inference: {argument('training', False)}",
        )
    if trainable and objective is not None and not objective.optimizer.built:
        # Once only: a loss scaling optimizer makes a new scale whenever it is built.
        objective.optimizer.build(list(trainable))
    recorder = LayerRecorder(model)
    outputs: dict[str, Any] = {}
    scaled_loss: list[Any] = []
    seeds: list[Any] = []
    counts: list[int] = []

    def step(x: Any, y: Any, sample_weight: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        for collected in (outputs, scaled_loss, seeds, counts):
            collected.clear()
        training = kind is StepKind.TRAIN
        with recorder.recording(graph):
            outputs["y_pred"] = call_model(model, x, training)
        if objective is not None:
            outputs["loss"] = objective.compute_loss(x, y, outputs["y_pred"], sample_weight, training)
        counts.append(len(graph.get_operations()))
        if training and objective is not None:
            # tf.gradients colocates every gradient op with the op it differentiates; a tape does not.
            scaled_loss.append(objective.optimizer.scale_loss(outputs["loss"]))
            counts[0] = len(graph.get_operations())
            with graph.colocate_with(scaled_loss[0].op):
                seeds.append(tf.ones_like(scaled_loss[0], name="seed"))
            parameters = [variable.value for variable in trainable]
            outputs["gradients"] = tf.gradients(scaled_loss, parameters, grad_ys=seeds)
            counts.append(len(graph.get_operations()))
            with predicated_writes(trainable[0].value):
                objective.optimizer.apply_gradients(list(zip(outputs["gradients"], trainable, strict=True)))

    try:
        graph = tf.function(step, autograph=False).get_concrete_function(*specs).graph
    except PartitionError:
        raise
    except Exception as error:
        in_loss = "y_pred" in outputs and "loss" not in outputs
        raise _untraceable(model, kind, error, targets=specs[1] if in_loss else None) from error
    captured = {id(placeholder) for _, placeholder in graph.captures}
    return Trace(
        graph=graph,
        inputs=tuple(tensor for tensor in graph.inputs if id(tensor) not in captured),
        outputs=dict(outputs),
        scaled_loss=scaled_loss[0] if scaled_loss else None,
        seed=seeds[0] if seeds else None,
        trainable=trainable,
        layer_of=recorder.layer_of(),
        layers=recorder.layers,
        num_forward=counts[0],
        num_backward=counts[1] - counts[0] if len(counts) > 1 else 0,
    )


def call_model(model: keras.Model, x: Any, training: bool) -> Any:
    """Call `model` as Keras' own training loop does."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def build(model: keras.Model, x_specs: Any) -> None:
    """Create the model's variables, if it has not done so yet, by a symbolic call that computes nothing."""
    if all(layer.built for layer in model._flatten_layers()):
        return
    try:
        model(tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), x_specs))
    except Exception as error:
        raise _untraceable(model, StepKind.PREDICT, error) from error


def output_specs(model: keras.Model, x_specs: Any) -> Any:
    """Specs of what `model` returns for inputs of `x_specs`, without tracing its gradients."""
    outputs = getattr(model, "output", None) if not isinstance(model, keras.Sequential) else None
    # Sizes that the model leaves open follow from those of the inputs.
    if outputs is None or any(None in tensor.shape[1:] for tensor in tf.nest.flatten(outputs)):
        try:
            outputs = model(tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), x_specs))
        except Exception as error:
            raise _untraceable(model, StepKind.PREDICT, error) from error
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), outputs)


def _untraceable(model: keras.Model, kind: StepKind, error: Exception, targets: Any = None) -> ModelError:
    """The error with TensorFlow's reason; `targets` are the specs given to the loss, if it failed there."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_code(f.filename)]
    where = f"{shown(frames[-1].filename)}:{frames[-1].lineno} ({frames[-1].name})" if frames else None
    specs = [spec for spec in tf.nest.flatten(targets) if spec is not None]
    given = [f"{spec.dtype.name} {spec.shape}".replace("None", "batch") for spec in specs]
    notes = [f"the loss was given targets of {', '.join(given)}"] if given else []
    advice = "check input shapes, dtypes and the loss"
    if given:
        advice = "if targets are others, set example_targets (a batch) in the model file"
    return ModelError(
        f"TensorFlow cannot trace the {kind.value} step of model {model.name!r}",
        where=where,
        notes=[*described(error, 6), *notes],
        help=f"the model must run under tf.function: {advice}, or try {argument('training', False)}",
    )


def _is_user_code(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS)
