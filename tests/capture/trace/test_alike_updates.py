"""Updates that are copied for alike variables are those that Keras would have traced."""

from contextlib import nullcontext
from functools import partial

import keras
import pytest
import tensorflow as tf

from partitioner.capture.trace import alike_updates
from partitioner.capture.trace.alike_updates import copied_updates
from partitioner.capture.trace.predicate import predicated_writes

OPTIMIZERS = {
    **{kind.__name__: kind for kind in alike_updates._TREAT_ALIKE},
    "SGD with momentum": partial(keras.optimizers.SGD, momentum=0.9, nesterov=True),
    "Adam with amsgrad": partial(keras.optimizers.Adam, amsgrad=True),
    "centered RMSprop": partial(keras.optimizers.RMSprop, centered=True, momentum=0.5),
    "accumulated gradients": partial(keras.optimizers.Adam, gradient_accumulation_steps=2),
    "averaged weights": partial(keras.optimizers.Adam, use_ema=True, ema_overwrite_frequency=3),
    "clipped gradients": partial(keras.optimizers.AdamW, clipnorm=1.0),
    "a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 100)),
    "scaled loss": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}


def dense() -> keras.Model:
    inputs = keras.Input((8,))
    outputs = inputs
    for _ in range(4):
        outputs = keras.layers.Dense(8)(outputs)
    return keras.Model(inputs, outputs)


def two_kernels() -> keras.Model:
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(8, use_bias=False)(keras.layers.Dense(8, use_bias=False)(inputs))
    return keras.Model(inputs, outputs)


def embedding() -> keras.Model:
    inputs = keras.Input((4,), dtype="int32")
    outputs = keras.layers.Add()([keras.layers.Embedding(10, 8)(inputs) for _ in range(3)])
    return keras.Model(inputs, outputs)


def traced(model: keras.Model, optimizer: keras.Optimizer, *, copied: bool) -> tf.Graph:
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        with predicated_writes(), copied_updates() if copied else nullcontext():
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    x, y = (tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (model.input, model.output))
    return tf.function(step, autograph=False).get_concrete_function(x, y).graph


def nodes(graph: tf.Graph) -> list[str]:
    """The nodes as text, without the numbers of custom gradients and the order of what a node waits for."""
    described = []
    for node in graph.as_graph_def().node:
        node.attr.pop("_gradient_op_type", None)
        inputs = sorted(node.input, key=lambda reference: reference if reference.startswith("^") else "")
        del node.input[:]
        node.input.extend(inputs)
        described.append(str(node))
    return described


def fresh(make):
    keras.utils.clear_session()
    return make()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copied_update_is_the_one_that_keras_traces(name):
    plain, copied = (traced(fresh(dense), OPTIMIZERS[name](), copied=copied) for copied in (False, True))

    assert nodes(copied) == nodes(plain)
    shapes = [[tensor.shape for op in graph.get_operations() for tensor in op.outputs] for graph in (plain, copied)]
    assert shapes[0] == shapes[1]
    assert [(e.dtype, p.name) for e, p in copied.captures] == [(e.dtype, p.name) for e, p in plain.captures]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_variable_that_all_updates_share_is_taken_for_a_slot(name):
    """Of two variables, the list of all variables of SGD (iterations, learning rate) is as long as a list of slots."""
    model, optimizer = fresh(two_kernels), OPTIMIZERS[name]()
    optimizer.build(model.trainable_variables)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for variable in model.trainable_variables:
        own = alike_updates._variables(inner, variable.value).values()
        assert {tuple(held.shape) for held in own} == {(8, 8)}
    plain, copied = (traced(fresh(two_kernels), OPTIMIZERS[name](), copied=copied) for copied in (False, True))
    assert nodes(copied) == nodes(plain)


def test_keras_traces_one_update_of_each_shape(monkeypatch):
    shapes, update_step = [], keras.optimizers.Adam.update_step

    def counted(self, gradient, variable, learning_rate):
        shapes.append(tuple(variable.shape))
        update_step(self, gradient, variable, learning_rate)

    monkeypatch.setattr(keras.optimizers.Adam, "update_step", counted)
    traced(dense(), keras.optimizers.Adam(), copied=True)

    assert sorted(shapes) == [(8,), (8, 8)]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_sparse_gradients_are_traced_by_keras(name):
    plain, copied = (traced(fresh(embedding), OPTIMIZERS[name](), copied=copied) for copied in (False, True))

    assert nodes(copied) == nodes(plain)


def test_an_optimizer_of_the_users_own_is_traced_by_keras():
    class ByName(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            factor = 2.0 if "bias" in variable.name else 1.0
            super().update_step(gradient * factor, variable, learning_rate)

    plain, copied = (traced(fresh(dense), ByName(), copied=copied) for copied in (False, True))

    assert nodes(copied) == nodes(plain)
