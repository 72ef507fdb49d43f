"""Settle every shape of a graph traced with an open batch, by importing it again with the batch size filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cost_models.specs import ITEM_BYTES, TensorSpec

_INDEX_DTYPES = ("int32", "int64")


def settle_shapes(
    graph_def: Any, inputs: Mapping[str, Any], captures: Mapping[str, Any], batch_size: int
) -> tuple[dict[str, TensorSpec], tuple[str, ...]]:
    """Shape and dtype of every tensor for a batch of `batch_size`.

    TensorFlow's own shape inference does the work. What it leaves open depends on values: index vectors count as
    scalars, any other unknown size as the batch.

    Args:
        graph_def: The traced graph.
        inputs: TensorSpec of each argument by the name of its placeholder.
        captures: Outside tensors by the name of their placeholder; their handles carry the variables' shapes.
        batch_size: Rows of a batch.

    Returns:
        Specs by tensor name, and the names of the tensors with an assumed size that are not index vectors.
    """
    graph = tf.__internal__.FuncGraph("settled_shapes")
    with graph.as_default():
        replaced = {f"{name}:0": graph.capture(external) for name, external in captures.items()}
        for name, spec in inputs.items():
            shape = [batch_size if i == 0 and size is None else size for i, size in enumerate(spec.shape)]
            replaced[f"{name}:0"] = tf.compat.v1.placeholder(spec.dtype, shape)
        tf.graph_util.import_graph_def(graph_def, input_map=replaced, name="")
    specs: dict[str, TensorSpec] = {}
    assumed: list[str] = []
    for node in graph_def.node:
        for output in graph.get_operation_by_name(node.name).outputs:
            tensor = replaced.get(output.name, output)
            dtype = tensor.dtype.base_dtype.name
            sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
            settled = tensor.shape.is_fully_defined() or dtype not in ITEM_BYTES or not ITEM_BYTES[dtype]
            fill = 1 if dtype in _INDEX_DTYPES else batch_size
            if not settled and dtype not in _INDEX_DTYPES:
                assumed.append(output.name)
            shape = tuple(fill if size is None else size for size in sizes)
            specs[output.name] = TensorSpec(shape=shape, dtype=dtype if dtype in ITEM_BYTES else "variant")
    return specs, tuple(assumed)
