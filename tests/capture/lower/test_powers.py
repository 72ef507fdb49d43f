"""Powers with a known exponent are written out, in values and in costs; all others stay as they are."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from captures import BATCH, capture
from keras import layers

from cost_models.registry import op_cost
from partitioner.capture.lower.powers import write_out_powers
from partitioner.ir.graph_def import producer
from partitioner.ir.op_graph import Phase

X = np.random.default_rng(0).uniform(0.1, 4.0, (5, 3))


def traced(function: Any, dtype: Any = tf.float32) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([None, 3], dtype)).graph


def value(graph_def: Any, output: str, dtype: Any) -> Any:
    def run(x: Any) -> Any:
        return tf.graph_util.import_graph_def(graph_def, input_map={"x:0": x}, return_elements=[output], name="")[0]

    return tf.function(run, autograph=False)(tf.constant(X, dtype)).numpy()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize(
    ("exponent", "types"),
    [
        (2.0, {"Square"}),
        (1.0, {"Identity"}),
        (0.5, {"Sqrt"}),
        (-0.5, {"Rsqrt"}),
        (-1.0, {"Reciprocal"}),
        (3.0, {"Square", "Mul"}),
    ],
)
def test_a_power_is_written_out_to_the_same_value(exponent: float, types: set[str], dtype: Any) -> None:
    graph = traced(lambda x: tf.pow(x, exponent, name="power"), dtype)
    graph_def = graph.as_graph_def()
    before = {node.name for node in graph_def.node}
    added = write_out_powers(graph_def)
    assert added == ({"power_square": "power"} if exponent == 3.0 else {})
    assert {node.op for node in graph_def.node if node.name == "power" or node.name not in before} == types
    expected = X.astype(dtype.as_numpy_dtype).astype("float64") ** exponent
    np.testing.assert_allclose(
        value(graph_def, "power:0", dtype), expected, rtol=4 * np.finfo(dtype.as_numpy_dtype).eps
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.pow(x, 2.5),
        lambda x: tf.pow(x, x),
        lambda x: tf.pow(x, [2.0, 2.0, 2.0]),  # may broadcast
        lambda x: tf.pow(2.0, x),
        lambda x: tf.cast(tf.pow(tf.cast(x, tf.int32), 2), tf.float32),
    ],
)
def test_other_powers_stay(function: Any) -> None:
    graph_def = traced(function).as_graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    assert write_out_powers(graph_def) == {}
    assert graph_def.SerializeToString(deterministic=True) == before


def test_the_gradient_of_a_power_is_written_out_too() -> None:
    """TensorFlow subtracts one from the exponent in the graph."""
    graph_def = traced(lambda x: tf.gradients(tf.pow(x, 3.0), x)[0]).as_graph_def()
    write_out_powers(graph_def)
    assert not [node for node in graph_def.node if node.op == "Pow"]
    (output,) = (node.input[0] for node in graph_def.node if node.op == "Identity")
    np.testing.assert_allclose(value(graph_def, f"{output}:0", tf.float32), 3 * X.astype("float32") ** 2, rtol=1e-6)


def test_gelu_of_a_captured_model_costs_products() -> None:
    """A cube is two products: one multiplication for each of its elements in either."""
    gelu = partial(keras.activations.gelu, approximate=True)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(7, activation=gelu, name="hidden"), layers.Dense(1)])
    model.compile("sgd", "mse")
    graph = capture(model).graph
    assert not [op for op in graph.ops if op.type == "Pow" and op.phase is not Phase.UPDATE]
    (square,) = (op for op in graph.ops if op.name.endswith("_square"))
    cube = graph.op[square.name.removesuffix("_square")]
    assert (square.type, cube.type) == ("Square", "Mul")
    assert (square.layer, square.phase) == (cube.layer, cube.phase) == ("hidden", Phase.FORWARD)
    flops = dict(zip(graph.op, (op_cost(spec).flops for spec in graph.specs), strict=True))
    assert [flops[op.name] for op in (square, cube)] == [BATCH * 7] * 2
    derivatives = Counter(op.type for op in graph.ops if op.differentiates == cube.name)
    assert derivatives["Square"] == 1


def test_nodes_that_are_added_lie_where_they_run() -> None:
    """Each import of the graph sorted all of its nodes, where some were at the end."""
    gelu = partial(keras.activations.gelu, approximate=True)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(7, activation=gelu), layers.Dense(1)])
    model.compile("sgd", "mse")
    seen = set[str]()
    for node in capture(model).graph_def.node:
        assert seen.issuperset(map(producer, node.input)), node.name
        seen.add(node.name)
