"""Read a graph of equal blocks: of ops that do the same with tensors of the same shapes, one is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

# The public API does not give what TensorFlow knows of the variable behind a handle.
from tensorflow.python.ops.handle_data_util import get_handle_data

from partitioner.capture.functions.reader import REFINED, GraphReader, ordered
from partitioner.capture.functions.reading import Reading
from partitioner.ir.graph_def import tensor_name

MOST_NUMBERS = 64
"""No shape, no list of axes and no padding has more numbers."""


def is_read_alike(nodes: Iterable[Any]) -> bool:
    """Whether nodes may share what is known of their outputs: TensorFlow infers all of it, as no lists pass by and no
    functions run."""
    return not any(node.op in REFINED or node.op.startswith("TensorList") for node in nodes)


def read_alike(
    reader: GraphReader, nodes: Sequence[Any], graph: Any, tensors: dict[str, Any], reading: Reading
) -> None:
    """Add an operation to the scratch graph for all nodes that are alike; arguments as for `GraphReader.read`.

    Nodes are alike if their attributes are and all that the shapes of their outputs can depend on: of inputs with many
    numbers their own shapes, of others what computes them.
    """
    made: dict[tuple[object, ...], Any] = {}
    first: dict[object, Any] = {}
    stands_for: dict[int, Any] = {}

    def first_alike(tensor: Any) -> Any:
        if id(tensor) not in stands_for:
            stands_for[id(tensor)] = first.setdefault(_like(tensor), tensor)
        return stands_for[id(tensor)]

    for node in ordered(nodes):
        copy = _without_names(node)
        inputs = [first_alike(tensors[tensor_name(name)]) for name in node.input if not name.startswith("^")]
        key = copy.SerializeToString(deterministic=True), *map(id, inputs)
        if key not in made:
            copy.name = f"part/{node.name}"
            made[key] = graph.add(copy, inputs)
            reader.read_ops([made[key]], reading)
        tensors.update((f"{node.name}:{index}", tensor) for index, tensor in enumerate(made[key].outputs))


def variable_like(handle: Any) -> object:
    """What shapes can depend on of an outside tensor: of the handle of a variable, the shape and dtype of that."""
    known = get_handle_data(handle) if handle.dtype == tf.resource else None
    return known.SerializeToString() if known is not None and known.shape_and_type else id(handle)


def _like(tensor: Any) -> object:
    """What shapes can depend on of a tensor: its own shape where it has many numbers, none of which is a size."""
    shape = tensor.shape
    if tensor.dtype.is_floating and shape.is_fully_defined() and shape.num_elements() > MOST_NUMBERS:
        return tensor.dtype, tuple(shape)
    return id(tensor)


def _without_names(node: Any) -> Any:
    """The node with neither names nor what only runtimes look at."""
    copy = type(node)()
    copy.CopyFrom(node)
    for field in ("name", "input", "device"):
        copy.ClearField(field)
    for attribute in [name for name in copy.attr if name.startswith("_")]:
        del copy.attr[attribute]
    return copy
