"""Real training steps: no op type is unknown, and TensorFlow's own FLOP counter agrees."""

import keras
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.framework import op_def_registry

from cost_models.flops import known_op_types, op_cost
from cost_models.specs import OpSpec, TensorSpec

CONTRACTIONS = {
    *("MatMul", "BatchMatMulV2"),
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "DepthwiseConv2dNative"),
}


def convolutional():
    inputs = layers.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    x = layers.Conv2D(12, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(16, 1, activation="silu")(x)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def attention():
    inputs = layers.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    y = layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x)
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x + y))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def training_graph(model, batch_size=4):
    """The graph of one step: forward, loss, gradients, Adam."""
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step(x, y):
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
        gradients = tf.gradients(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    (x,) = model.inputs
    return step.get_concrete_function(
        tf.TensorSpec((batch_size, *x.shape[1:]), x.dtype), tf.TensorSpec((batch_size,), "int32")
    ).graph


def spec(tensor):
    return TensorSpec(shape=tuple(size or 0 for size in tensor.shape), dtype=tensor.dtype.base_dtype.name)


def op_spec(op):
    attributes = {}
    for key in {"equation", "is_training", "ksize"} & set(op.node_def.attr):
        value = op.get_attr(key)
        attributes[key] = {bytes: bytes.decode, list: tuple}.get(type(value), bool)(value)
    return OpSpec(
        type=op.type,
        inputs=tuple(spec(tensor) for tensor in op.inputs),
        outputs=tuple(spec(tensor) for tensor in op.outputs),
        attributes=attributes,
    )


@pytest.fixture(scope="module", params=[convolutional, attention], ids=lambda build: build.__name__)
def graph(request):
    return training_graph(request.param())


def test_no_op_of_a_training_step_is_unknown(graph):
    unknown = {op.type for op in graph.get_operations() if not op_cost(op_spec(op)).costed}
    assert unknown == set()


def test_tensorflow_counts_the_same_flops(graph):
    options = tf.compat.v1.profiler.ProfileOptionBuilder(tf.compat.v1.profiler.ProfileOptionBuilder.float_operation())
    root = tf.compat.v1.profiler.profile(graph=graph, cmd="scope", options=options.with_empty_output().build())
    theirs, todo = {}, [root]
    while todo:
        node = todo.pop()
        theirs[node.name] = node.float_ops
        todo.extend(node.children)
    # The profiler looks for `transpose_a`, but a batched product has `adj_x`: its depth is wrong for those.
    ours = {
        op.name: op_cost(op_spec(op)).flops
        for op in graph.get_operations()
        if op.type in CONTRACTIONS and not (op.type == "BatchMatMulV2" and op.get_attr("adj_x"))
    }
    assert len(ours) >= 8
    assert min(ours.values()) > 0
    assert {name: theirs[name] for name in ours} == ours


def test_every_formula_is_for_an_op_that_exists():
    assert [name for name in sorted(known_op_types()) if op_def_registry.get(name) is None] == []
