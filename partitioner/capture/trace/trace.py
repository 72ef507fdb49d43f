"""Trace one step of a Keras model into TensorFlow's graph."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

# TensorFlow has no way to unregister a gradient.
from tensorflow.python.framework.ops import gradient_registry

from partitioner.capture.source.module_file import described, shown
from partitioner.capture.trace.alike_updates import copied_updates
from partitioner.capture.trace.gradients import GradientRecorder
from partitioner.capture.trace.layers import LayerRecorder
from partitioner.capture.trace.objective import TrainingObjective
from partitioner.capture.trace.op_stacks import one_stack_for_all_ops
from partitioner.capture.trace.own_step import StepRecorder, Update, has_call, has_own_step, run_own_step
from partitioner.capture.trace.predicate import predicated_writes
from partitioner.errors import ModelError, PartitionError
from partitioner.ir.op_graph import Layer, Phase
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
        seed: The gradient of the loss by itself (scaled, if the optimizer asks for it), where the backward pass starts;
            None without a loss, and in steps that a model defines itself.
        trainable: The variables that the gradients belong to.
        layer_of: Layer path by op name.
        layers: The layers called.
        differentiates: The op that each op of a gradient differentiates, by name, where a gradient function made it.
        spans: Ranges of ops, in the order in which they were made, that are no forward ops, with their phase.
        updates: What optimizers update.
    """

    graph: Any
    inputs: tuple[Any, ...]
    outputs: dict[str, Any]
    seed: Any
    trainable: tuple[Any, ...]
    layer_of: dict[str, str]
    layers: tuple[Layer, ...]
    differentiates: dict[str, str]
    spans: tuple[tuple[int, int, Phase], ...]
    updates: tuple[Update, ...]


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
    if has_own_step(model, kind):
        return _trace_own_step(model, kind, specs)
    build(model, specs[0])
    trainable: tuple[Any, ...] = tuple(model.trainable_variables) if kind is StepKind.TRAIN else ()
    if trainable and objective is not None and not objective.optimizer.built:
        # Once only: a loss scaling optimizer makes a new scale whenever it is built.
        objective.optimizer.build(list(trainable))
    recorder, gradients = LayerRecorder(model), GradientRecorder()
    parameters = [variable.value for variable in trainable]
    outputs: dict[str, Any] = {}
    seeds: list[Any] = []
    spans: list[tuple[int, int, Phase]] = []

    def step(x: Any, y: Any, sample_weight: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        for collected in (outputs, seeds, spans):
            collected.clear()
        with gradients.recording(graph):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(parameters)
                with recorder.recording(graph):
                    outputs["y_pred"] = call_model(model, x, kind is StepKind.TRAIN)
                if objective is None:
                    return
                loss = objective.compute_loss(x, y, outputs["y_pred"], sample_weight, kind is StepKind.TRAIN)
                outputs["loss"] = loss
                if not trainable:
                    return
                scaled_loss = objective.optimizer.scale_loss(loss)
            num_forward = graph.num_operations()
            with tf.name_scope("gradients"):  # for what the tape makes itself, such as sums
                seeds.append(tf.ones_like(scaled_loss, name="seed"))
                outputs["gradients"] = tape.gradient(scaled_loss, parameters, output_gradients=seeds[0])
        num_differentiated = graph.num_operations()
        with predicated_writes(), copied_updates():
            objective.optimizer.apply_gradients(list(zip(outputs["gradients"], trainable, strict=True)))
        spans.append((num_forward, num_differentiated, Phase.BACKWARD))
        spans.append((num_differentiated, graph.num_operations(), Phase.UPDATE))

    graph = _graph_of(model, kind, step, specs, is_in_loss=lambda: "y_pred" in outputs and "loss" not in outputs)
    updates = [Update(objective.optimizer, tuple(outputs["gradients"]), trainable)] if objective and spans else []
    return Trace(
        graph=graph,
        inputs=_arguments(graph),
        outputs=dict(outputs),
        seed=seeds[0] if seeds else None,
        trainable=trainable,
        layer_of=recorder.layer_of(),
        layers=recorder.layers,
        differentiates=gradients.differentiates(),
        spans=tuple(spans),
        updates=tuple(updates),
    )


def _trace_own_step(model: keras.Model, kind: StepKind, specs: tuple[Any, Any, Any]) -> Trace:
    """Trace a step that the model defines itself, all of it."""
    if has_call(model):
        build(model, specs[0])
    recorder, gradients, watched = LayerRecorder(model), GradientRecorder(), StepRecorder()
    logs: list[Any] = []

    def step(x: Any, y: Any, sample_weight: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        with recorder.recording(graph), gradients.recording(graph), watched.recording(graph):
            logs[:] = [tf.nest.map_structure(tf.convert_to_tensor, run_own_step(model, kind, x, y, sample_weight))]

    graph = _graph_of(model, kind, step, specs)
    return Trace(
        graph=graph,
        inputs=_arguments(graph),
        outputs={"logs": logs[0]},
        seed=None,
        trainable=tuple({id(v): v for update in watched.updates for v in update.variables}.values()),
        layer_of=recorder.layer_of(),
        layers=recorder.layers,
        differentiates=gradients.differentiates(),
        spans=tuple(watched.spans),
        updates=tuple(watched.updates),
    )


def _graph_of(
    model: keras.Model,
    kind: StepKind,
    step: Callable[[Any, Any, Any], None],
    specs: tuple[Any, Any, Any],
    is_in_loss: Callable[[], bool] = lambda: False,
) -> Any:
    """The graph of a function of a step's arguments."""
    try:
        with one_stack_for_all_ops():
            graph = tf.function(step, autograph=False).get_concrete_function(*specs).graph
        _forget_gradients(graph)
        return graph
    except PartitionError:
        raise
    except Exception as error:
        raise _untraceable(model, kind, error, targets=specs[1] if is_in_loss() else None) from error


def _forget_gradients(graph: Any) -> None:
    """Take the graph's custom gradients out of TensorFlow's registry, which would keep the graph for ever.

    The graph is differentiated already. Those of functions that it calls stay: others may call them.
    """
    for op in graph.get_operations():
        if op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr:
            gradient_registry._registry.pop(op.get_attr("_gradient_op_type").decode(), None)


def _arguments(graph: Any) -> tuple[Any, ...]:
    captured = {id(placeholder) for _, placeholder in graph.captures}
    return tuple(tensor for tensor in graph.inputs if id(tensor) not in captured)


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
