"""The arguments of a step: the specs of a model's inputs and of the targets of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from partitioner.errors import ModelError, UsageError
from partitioner.spelling import argument

InputShapes = Mapping[str, tuple[int, ...]]
"""Sizes without the batch, by input name; the empty name stands for the only input."""


def input_specs(model: keras.Model, input_shapes: InputShapes | None = None, example_inputs: Any = None) -> Any:
    """Specs of one batch of inputs, in the structure the model is called with; the batch size stays unknown.

    Sizes come from `input_shapes`, else from `example_inputs`, else from the model itself.

    Raises:
        ModelError: None of them gives a size.
        UsageError: `input_shapes` names an input the model does not have, or contradicts a known size.
    """
    shapes = dict(input_shapes or {})
    specs = _own_specs(model) if example_inputs is None else tf.nest.map_structure(_spec_of_example, example_inputs)
    if specs is None:
        specs = _specs_from_shapes(model, shapes)
        shapes = {}
    if shapes:
        specs = _fill_sizes(model, specs, shapes)
    for name, spec in _named(model, specs):
        if spec.shape.rank is None or None in spec.shape.as_list()[1:]:
            raise ModelError(
                f"the input {name!r} of model {model.name!r} has the unknown shape {_shape_text(spec)}",
                notes=["costs and memory need every size except the batch"],
                help=f"give it, e.g. {argument('input_shape', {name: _example_shape(spec)})}",
            )
    return specs


def target_specs(outputs: Any, loss: Any) -> Any:
    """Specs of the targets that go with `outputs` (specs) under `loss` (as given to `compile`).

    A sparse categorical loss compares class numbers without the last axis; every other loss compares values of the
    output's own shape.
    """
    flat = tf.nest.flatten(outputs)
    losses = _loss_per_output(outputs, loss, len(flat))
    targets = [
        tf.TensorSpec(spec.shape[:-1], tf.int32) if _is_sparse(output_loss) else tf.TensorSpec(spec.shape, spec.dtype)
        for spec, output_loss in zip(flat, losses, strict=True)
    ]
    return tf.nest.pack_sequence_as(outputs, targets)


def specs_like(values: Any) -> Any:
    """Specs of a batch of values or symbolic tensors, with the batch size left open."""
    return tf.nest.map_structure(lambda v: None if v is None else _open_batch(v.shape, v.dtype), values)


def _open_batch(shape: Any, dtype: Any) -> tf.TensorSpec:
    sizes = tf.TensorShape(shape).as_list()
    return tf.TensorSpec([None, *sizes[1:]] if sizes else [], dtype)


def _spec_of_example(value: Any) -> tf.TensorSpec:
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        raise UsageError("example_inputs holds a scalar; expected arrays with the batch as first axis")
    dtype = tf.as_dtype(keras.config.floatx()) if tensor.dtype == tf.float64 else tensor.dtype
    return _open_batch(tensor.shape, dtype)


def _own_specs(model: keras.Model) -> Any:
    if not getattr(model, "inputs", None):
        return None
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype, name=t.name), structure)


def _specs_from_shapes(model: keras.Model, shapes: dict[str, tuple[int, ...]]) -> Any:
    if not shapes:
        built = getattr(model, "_build_shapes_dict", None) or {}
        if len(built) == 1 and (structure := next(iter(built.values()))):
            return keras.tree.map_shape_structure(
                lambda shape: tf.TensorSpec([None, *shape[1:]], keras.config.floatx()), structure
            )
        why = "is not built" if isinstance(model, keras.Sequential) else "is subclassed"
        raise ModelError(
            f"the model {model.name!r} {why} and does not say which inputs it takes",
            help=f"give the sizes without the batch, e.g. {argument('input_shape', (28, 28, 1))}, "
            "or set example_inputs in the file",
        )
    if len(shapes) == 1:
        return tf.TensorSpec([None, *next(iter(shapes.values()))], keras.config.floatx())
    return {name: tf.TensorSpec([None, *shape], keras.config.floatx()) for name, shape in shapes.items()}


def _named(model: keras.Model, specs: Any) -> list[tuple[str, tf.TensorSpec]]:
    flat = tf.nest.flatten(specs)
    names = [tensor.name for tensor in getattr(model, "inputs", None) or []]
    if len(names) != len(flat):
        names = sorted(specs) if isinstance(specs, dict) else [f"input_{index}" for index in range(len(flat))]
    return list(zip(names, flat, strict=True))


def _fill_sizes(model: keras.Model, specs: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    named = _named(model, specs)
    names = [name for name, _ in named]
    if "" in shapes and len(names) > 1:
        raise UsageError(
            f"{argument('input_shape')} names no input, but the model has {len(names)} inputs: {', '.join(names)}",
            help=argument("input_shape", {name: _example_shape(spec) for name, spec in named}),
        )
    strangers = [name for name in shapes if name and name not in names]
    if strangers:
        raise UsageError(
            f"the model has no input named {', '.join(map(repr, strangers))}; its inputs: {', '.join(names)}"
        )
    filled = []
    for name, spec in named:
        shape = shapes.get(name, shapes.get(""))
        if shape is None:
            filled.append(spec)
            continue
        given = tf.TensorShape([None, *shape])
        if not spec.shape.is_compatible_with(given):
            raise UsageError(
                f"{argument('input_shape', tuple(shape))} contradicts the input {name!r}: {_shape_text(spec)}"
            )
        filled.append(tf.TensorSpec(spec.shape.merge_with(given), spec.dtype, name=spec.name))
    return tf.nest.pack_sequence_as(specs, filled)


def _shape_text(spec: tf.TensorSpec) -> str:
    if spec.shape.rank is None:
        return "(unknown rank)"
    return "(" + ", ".join("?" if size is None else str(size) for size in spec.shape.as_list()) + ")"


def _example_shape(spec: tf.TensorSpec) -> tuple[int, ...]:
    sizes = spec.shape.as_list()[1:] if spec.shape.rank else [None]
    return tuple(64 if size is None else size for size in sizes)


def _loss_per_output(outputs: Any, loss: Any, count: int) -> list[Any]:
    if isinstance(loss, dict):
        if isinstance(outputs, dict):
            return [loss.get(key) for key in sorted(outputs)]
        return list(loss.values())
    if isinstance(loss, (list, tuple)):
        return list(loss)
    return [loss] * count


def _is_sparse(loss: Any) -> bool:
    try:
        loss = keras.losses.get(loss)
    except ValueError:
        return False
    name = getattr(loss, "__name__", type(loss).__name__).lower().replace("_", "")
    return name.startswith("sparse")
