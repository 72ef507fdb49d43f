"""What gradients of loops do for nothing is dropped, and nothing else, by running graphs before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from captures import capture
from keras import layers
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from partitioner.capture.functions.loops import drop_idle_sums, only_reads, pass_on_idle_variables
from partitioner.capture.lower.shapes import settle_shapes

WIDTH = 3


def loop(change: Callable[[Any, Any], Any], held: Sequence[int]) -> Any:
    """The graph of the gradients of a loop of three trips, by its rows and by what every trip adds to them."""

    def gradients(rows: Any, given: Any) -> Any:
        _, found = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, change(y, given)), (0, rows))
        total = tf.reduce_sum(found) + 0 * tf.reduce_sum(given)
        return [tf.identity(part, name) for part, name in zip(tf.gradients(total, [rows, given]), "ab", strict=True)]

    specs = [tf.TensorSpec([None, WIDTH]), tf.TensorSpec(held)]
    return tf.function(gradients, autograph=False).get_concrete_function(*specs).graph


def idle_in(graph: Any, batch_size: int) -> dict[str, frozenset[str]]:
    inputs = {tensor.op.name: tf.TensorSpec(tensor.shape) for tensor in graph.inputs}
    found = settle_shapes(graph.as_graph_def(), inputs, {}, batch_size).idle_sums
    return {name: idle for name, idle in found.items() if idle}


def results(graph_def: Any, names: Sequence[str], fed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    config = tf.compat.v1.ConfigProto()  # TensorFlow would merge sums, and round otherwise where there are others
    config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        return session.run(names, fed)


def sums(graph_def: Any) -> int:
    return sum(node.op == "Sum" for function in graph_def.library.function for node in function.node_def)


@pytest.mark.parametrize(
    ("change", "held", "some_stay"),
    [
        pytest.param(lambda y, z: tf.tanh(y) * tf.sigmoid(y) + y, [None, WIDTH], False, id="alike"),
        pytest.param(lambda y, z: tf.tanh(y) * z + y, [1, WIDTH], True, id="a-row-for-all"),
        pytest.param(lambda y, z: tf.tanh(y) * z + y, [None, 1], True, id="a-column-for-all"),
    ],
)
@pytest.mark.parametrize("rows", [5, 1])
def test_gradients_stay_what_they_were(change: Any, held: Sequence[int], some_stay: bool, rows: int) -> None:
    """Settled for five rows, and run on these and on a single one."""
    graph = loop(change, held)
    idle = idle_in(graph, 5)
    assert idle
    graph_def = graph.as_graph_def()
    count = sums(graph_def)
    drop_idle_sums(graph_def, idle)
    assert sums(graph_def) < count
    assert bool(sums(graph_def)) == some_stay

    generator = np.random.default_rng(0)
    shapes = [[rows if size is None else size for size in one] for one in ([None, WIDTH], held)]
    values = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    fed = dict(zip([tensor.name for tensor in graph.inputs], values, strict=True))
    before, after = (results(one, ["a:0", "b:0"], fed) for one in (graph.as_graph_def(), graph_def))
    for found, expected in zip(after, before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_of_a_single_row_nothing_is_said() -> None:
    """It might be what is broadcast to more."""
    assert idle_in(loop(lambda y, z: y * z + y, [None, WIDTH]), 1) == {}


def test_an_lstm_saves_no_shapes_and_sums_over_nothing() -> None:
    step = capture(models.MODELS["lstm"]())
    backward = [op.name for op in step.graph.ops if op.type == "StatelessWhile"]
    assert len(backward) == 2
    for name in backward:
        inside = {op.type for run in step.graph.runs[name] for op in run.ops}
        assert "MatMul" in inside
        assert not {"BroadcastGradientArgs", "Sum"} & inside


def ran(graph_def: Any) -> set[str]:
    """Types of the ops in the functions that a graph runs."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    found, nodes = set[str](), list(graph_def.node)
    while nodes:
        called = [functions.pop(value.func.name, None) for value in nodes.pop().attr.values()]
        inside = [node for function in called if function for node in function.node_def]
        found.update(node.op for node in inside)
        nodes += inside
    return found


@pytest.mark.parametrize(
    ("condition", "body", "is_idle"),
    [
        pytest.param(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, y + 1, tf.sin(z)), True, id="serves-itself"),
        pytest.param(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, y + z, tf.sin(z)), False, id="serves-another"),
        pytest.param(
            lambda i, y, z: tf.reduce_sum(z) > 0.1,
            lambda i, y, z: (i + 1, y + 1, tf.sin(z) / 2),
            False,
            id="ends-the-loop",
        ),
        pytest.param(
            lambda i, y, z: i < 3,
            lambda i, y, z: (
                i + 1,
                y + 1,
                tf.while_loop(lambda j, _: j < 2, lambda j, x: (j + 1, tf.sin(x)), (0, z))[1],
            ),
            True,
            id="holds-a-loop",
        ),
    ],
)
def test_variables_that_serve_none_but_themselves_are_passed_on(condition: Any, body: Any, is_idle: bool) -> None:
    """Two loops in a row; of the second, one variable is asked for."""

    def twice(rows: Any, given: Any) -> Any:
        _, y, z = tf.while_loop(condition, body, (0, rows, given))
        return tf.identity(tf.while_loop(condition, body, (0, y, z + 0.0 if not is_idle else z))[1], "a")

    specs = [tf.TensorSpec([None, WIDTH])] * 2
    graph = tf.function(twice, autograph=False).get_concrete_function(*specs).graph
    graph_def = graph.as_graph_def()
    pass_on_idle_variables(graph_def, ["a:0"])
    assert ("Sin" in ran(graph_def)) is not is_idle

    values = [np.full((2, WIDTH), value, "float32") for value in (0.25, 0.75)]
    fed = dict(zip([tensor.name for tensor in graph.inputs], values, strict=True))
    found, expected = (results(one, ["a:0"], fed)[0] for one in (graph_def, graph.as_graph_def()))
    np.testing.assert_array_equal(found, expected)


def test_bodies_of_two_loops_stay() -> None:
    """What one loop does not need the other may."""

    def both(rows: Any) -> Any:
        first = tf.while_loop(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, y + 1, tf.sin(z)), (0, rows, rows))
        return tf.identity(first[1], "a"), tf.identity(first[2], "b")

    graph = tf.function(both, autograph=False).get_concrete_function(tf.TensorSpec([None, WIDTH])).graph
    graph_def = graph.as_graph_def()
    (loop,) = [node for node in graph_def.node if node.op in ("While", "StatelessWhile")]
    other = graph_def.node.add()
    other.CopyFrom(loop)
    other.name = "other"
    (end,) = [node for node in graph_def.node if node.name == "b"]
    end.input[0] = end.input[0].replace(loop.name, "other")
    pass_on_idle_variables(graph_def, ["a:0", "b:0"])
    assert "Sin" in ran(graph_def)


def test_an_lstm_at_the_input_computes_no_gradient_of_it() -> None:
    """Two products a trip forwards, and their gradients but the one of the input: of the state and of two kernels."""
    inputs = keras.Input((4, 3))
    step = capture(models.compiled(keras.Model(inputs, layers.Dense(4)(layers.LSTM(5)(inputs)))))
    counts = {
        op.type: sum(one.type == "MatMul" for run in step.graph.runs[op.name] for one in run.ops)
        for op in step.graph.ops
        if op.type in ("While", "StatelessWhile")
    }
    assert counts == {"While": 2, "StatelessWhile": 3}


def test_a_loop_that_only_reads_variables_is_no_side_effect() -> None:
    step = capture(models.MODELS["lstm"]())
    loops = [op.name for op in step.graph.ops if op.type == "While"]
    assert loops
    assert not set(loops) & set(step.side_effects)


def test_a_loop_that_writes_a_variable_is_one() -> None:
    class Counting(layers.Layer):
        def build(self, shape: Any) -> None:
            self.trips = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x: Any) -> Any:
            def body(i: Any, y: Any) -> Any:
                self.trips.assign(self.trips + 1.0)
                return i + 1, tf.tanh(y)

            return tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    inputs = keras.Input((WIDTH,))
    step = capture(models.compiled(keras.Model(inputs, layers.Dense(4)(Counting()(inputs)))))
    library = {function.signature.name: function for function in step.graph_def.library.function}
    (node,) = [node for node in step.graph_def.node if node.op == "While"]
    assert not only_reads(node, library)
    assert node.name in step.side_effects
