"""No op of a training step is without a formula: real models, mixed precision, every optimizer of Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import models
import pytest
from captures import capture
from keras import layers, ops

from cost_models.catalogue import device_named, link_named
from cost_models.topology import Topology, TopologyDevice
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase
from partitioner.ir.step import StepKind
from partitioner.planner.model.costs import cost_ops

BATCH, LENGTH, WIDTH = 4, 6, 8
TOPOLOGY = Topology.uniform(
    [
        TopologyDevice(
            name="/job:localhost/replica:0/task:0/device:GPU:0",
            device=device_named("a100-80gb"),
            memory_bytes=80 * 10**9,
        )
    ],
    link_named("nvlink3"),
)


@pytest.fixture(autouse=True)
def float32_again() -> Iterator[None]:
    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session()


def costed(model: keras.Model, batch_size: int = BATCH) -> CostedGraph:
    """A training step with what its ops cost."""
    return cost_ops(capture(model, batch_size=batch_size).graph, TOPOLOGY)


def compiled(model: keras.Model, optimizer: Any = "adam") -> keras.Model:
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def encoder() -> keras.Model:
    """A block of a Transformer encoder, masked, with dropout."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(20, WIDTH, mask_zero=True)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x))
    y = layers.Dense(WIDTH)(layers.Dense(16, activation="gelu")(x))
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def decoder() -> keras.Model:
    """A block of a GPT, with a causal mask, and logits over tokens."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = models.Positions()(layers.Embedding(20, WIDTH)(inputs))
    y = layers.LayerNormalization()(x)
    x = x + layers.Dropout(0.1)(layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True))
    y = layers.Dense(32, activation=lambda value: keras.activations.gelu(value, approximate=True))(
        layers.LayerNormalization()(x)
    )
    x = x + layers.Dense(WIDTH)(y)
    return keras.Model(inputs, layers.Dense(20)(layers.LayerNormalization()(x)))


def bidirectional(cell: Callable[..., layers.Layer]) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Bidirectional(cell(5, return_sequences=True))(layers.Embedding(20, WIDTH, mask_zero=True)(inputs))
    return keras.Model(inputs, layers.Dense(4)(cell(5)(x)))


def convolutional() -> keras.Model:
    """What applications are made of: every kind of convolution, pooling, normalization and activation in them."""
    inputs = keras.Input((24, 24, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = layers.BatchNormalization()(layers.Conv2D(8, 3, use_bias=False)(layers.ZeroPadding2D()(x)))
    x = layers.MaxPooling2D(3, 2)(layers.Activation("hard_silu")(x))
    y = layers.ReLU(6)(layers.DepthwiseConv2D(3, padding="same")(x))
    scale = layers.Dense(8, activation="hard_sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(y))
    x = layers.Add()([x, layers.Multiply()([y, scale])])
    y = layers.AveragePooling2D(3, 1, padding="same")(layers.SeparableConv2D(8, 5, padding="same")(x))
    x = layers.Concatenate()([x, layers.Cropping2D(((1, 0), (1, 0)))(layers.ZeroPadding2D(((0, 1), (0, 1)))(y))])
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(8, 2, 2, activation="gelu")(x))
    x = layers.Dropout(0.2, noise_shape=(None, 1, 1, 1))(layers.Activation("silu")(x))
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.GlobalMaxPooling2D()(x)))


SMALL: dict[str, Callable[[], keras.Model]] = {
    "encoder": encoder,
    "decoder": decoder,
    "convolutional": convolutional,
    "bidirectional LSTM": lambda: bidirectional(layers.LSTM),
    "bidirectional GRU": lambda: bidirectional(layers.GRU),
}


def assert_known(graph: CostedGraph) -> None:
    assert graph.uncosted_ops == {}
    assert graph.graph.assumed_shapes == ()
    assert graph.graph.assumed_trips == {}


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, "float32") for name in SMALL]
    + [(name, "mixed_float16") for name in ("encoder", "convolutional", "bidirectional LSTM")],
)
def test_every_op_of_a_training_step_is_known(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    graph = costed(compiled(SMALL[name]()))
    assert_known(graph)
    halves = [tensor for tensor in graph.graph.tensors if tensor.spec.dtype == "float16"]
    assert bool(halves) == (policy == "mixed_float16")


def optimizers() -> list[str]:
    names = {
        name
        for name, kind in vars(keras.optimizers).items()
        if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer)
    }
    return sorted(names - {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"})


@pytest.mark.parametrize("name", optimizers())
def test_every_op_of_an_optimizer_is_known(name: str) -> None:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4), layers.Dense(2)])
    graph = costed(compiled(model, getattr(keras.optimizers, name)()))
    assert_known(graph)
    assert sum(op.phase is Phase.UPDATE for op in graph.graph.ops) > 4


@pytest.mark.parametrize("name", [*models.optimizers(), "scaled"])
def test_every_op_of_an_optimizer_with_options_is_known(name: str) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    optimizer = scaled if name == "scaled" else models.optimizers()[name]()
    assert_known(costed(compiled(keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2)]), optimizer)))


def test_a_loop_costs_its_trips() -> None:
    """An LSTM of 5 units on 8 features: in each of 6 trips, products of (4, 8) and of (4, 5) with 20 columns."""
    inputs = keras.Input((LENGTH, WIDTH))
    graph = costed(compiled(keras.Model(inputs, layers.LSTM(5)(inputs)), "sgd"))
    loops = {
        op.phase: cost for op, cost in zip(graph.graph.ops, graph.costs, strict=True) if op.name in graph.graph.runs
    }
    by_type = {
        phase: sum(part.times * part.cost.flops for part in cost.parts if part.type == "MatMul")
        for phase, cost in loops.items()
    }
    forward = LENGTH * 2 * BATCH * 20 * (WIDTH + 5)
    features = LENGTH * 2 * BATCH * 20 * WIDTH  # back, each product by both of its factors but these, which are data
    assert by_type == {Phase.FORWARD: forward, Phase.BACKWARD: 2 * forward - features}


def test_a_loop_saves_its_trips_for_its_gradient() -> None:
    """The same LSTM in shorter and longer sequences: what it saves grows by the same bytes with every trip."""

    def saved(length: int) -> int:
        inputs = keras.Input((length, WIDTH))
        graph = costed(compiled(keras.Model(inputs, layers.LSTM(5)(inputs)), "sgd")).graph
        loop = next(op for op in graph.ops if op.name in graph.runs and op.phase is Phase.FORWARD)
        read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
        return sum(graph.tensor[name].size_bytes for name in loop.outputs if name in read)

    short, longer, longest = saved(3), saved(6), saved(9)
    assert longest - longer == longer - short > 0


class Halving(layers.Layer):
    """A loop that ends when the values say so."""

    def call(self, x: Any) -> Any:
        return ops.while_loop(lambda value: ops.max(value) > 1.0, lambda value: (value / 2,), (x,))[0]


def test_trips_that_depend_on_values_are_stated() -> None:
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, Halving()(layers.Dense(4)(inputs)))
    step = capture(model, StepKind.PREDICT, batch_size=BATCH)
    assert list(step.graph.assumed_trips.values()) == [1]
    assert set(step.graph.assumed_trips) == set(step.graph.runs)


# Their inputs are the smallest they take; the op types do not depend on that.
APPLICATIONS = {
    "MobileNetV3Small": 32,
    "ResNet50": 32,
    "EfficientNetB0": 32,
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "NASNetMobile": 32,
}


@pytest.mark.grid
@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_op_of_an_application_is_known(name: str) -> None:
    side = APPLICATIONS[name]
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)
    assert_known(costed(compiled(model, "sgd"), batch_size=2))
