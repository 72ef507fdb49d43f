"""Infer every shape of a graph traced with an open batch, by importing it again with the batch size filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from partitioner.capture.functions.alike import is_read_alike, read_alike, variable_like
from partitioner.capture.functions.reader import GraphReader, plain
from partitioner.capture.functions.reading import Reading
from partitioner.capture.functions.scratch_graph import ScratchGraph


def settle_shapes(graph_def: Any, inputs: Mapping[str, Any], captures: Mapping[str, Any], batch_size: int) -> Reading:
    """Shape and dtype of every tensor for a batch of `batch_size`, and what loops and calls run.

    TensorFlow's own shape inference does the work. Sizes that it leaves open depend on values: index vectors count as
    scalars, any other unknown size as the batch.

    Args:
        graph_def: The traced graph.
        inputs: TensorSpec of each argument by the name of its placeholder.
        captures: Outside tensors by the name of their placeholder; their handles carry the variables' shapes.
        batch_size: Rows of a batch.

    Returns:
        The reading; ops that are alike share tensors of the scratch graph, where no lists pass by and no functions run.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    is_shared = is_read_alike(graph_def.node)
    graph = ScratchGraph("settled_shapes")
    with graph.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=graph_def.library), name="")
        given = _captured(graph, captures, variable_like if is_shared else id)
        for name, spec in inputs.items():
            shape = [batch_size if i == 0 and size is None else size for i, size in enumerate(spec.shape)]
            given[f"{name}:0"] = graph.argument(spec.dtype, tf.TensorShape(shape))
    reading = Reading()
    reader = GraphReader(library, batch_size)
    reader.read_ops([tensor.op for tensor in given.values()], reading)
    tensors = dict(given)
    nodes = [node for node in graph_def.node if f"{node.name}:0" not in given]
    if is_shared:
        read_alike(reader, nodes, graph, tensors, reading)
        assumed = {*reading.assumed}
        return Reading(
            specs={name: reading.specs[tensor.name] for name, tensor in tensors.items()},
            assumed=[name for name, tensor in tensors.items() if tensor.name in assumed],
            tensors=tensors,
        )
    reader.read(nodes, graph, tensors, reading)
    names = {tensor.name: name for name, tensor in given.items()}

    def original(name: str) -> str:
        return names.get(name) or plain(name)

    return Reading(
        specs={name: reading.specs[tensor.name] for name, tensor in tensors.items()},
        assumed=[original(name) for name in reading.assumed],
        runs={original(name): runs for name, runs in reading.runs.items()},
        passed_on={original(after): original(before) for after, before in reading.passed_on.items()},
        assumed_trips={original(name): count for name, count in reading.assumed_trips.items()},
        insides=reading.insides,
        tensors=tensors,
        idle_sums=reading.idle_sums,
    )


def _captured(graph: Any, captures: Mapping[str, Any], like: Callable[[Any], object]) -> dict[str, Any]:
    """The placeholders of outside tensors in a scratch graph, by the names of tensors; one for all that are alike."""
    kinds = {name: like(external) for name, external in captures.items()}
    first = {kinds[name]: external for name, external in captures.items()}
    made = {kind: graph.capture(external) for kind, external in first.items()}
    return {f"{name}:0": made[kind] for name, kind in kinds.items()}
