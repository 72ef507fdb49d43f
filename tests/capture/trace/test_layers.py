"""Which layer made an op: nested, shared, named twice, or not a layer at all."""

from __future__ import annotations

from typing import Any

import keras
import models
import tensorflow as tf
from keras import layers

from partitioner.capture.trace.layers import LayerRecorder


def recorded(model: keras.Model, x: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Op types by layer path, and the layers, of one traced call."""
    recorder = LayerRecorder(model)
    found: dict[str, str] = {}

    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with recorder.recording(graph):
            result = model(x)
        tf.negative(result, name="outside")
        return result

    graph = run.get_concrete_function(x).graph
    by_op = recorder.layer_of()
    for op in graph.get_operations():
        if op.type in ("MatMul", "Conv2D", "Neg", "Sub", "AddV2", "Tanh"):
            found[op.name] = f"{by_op.get(op.name)}:{op.type}"
    return found, {layer.path: layer for layer in recorder.layers}


def test_nested_models_give_paths() -> None:
    ops, found = recorded(models.nested(), tf.zeros((2, models.SIDE, models.SIDE, 2)))
    dense = [path for path, layer in found.items() if layer.class_name == "Dense"]
    conv = [path for path, layer in found.items() if layer.class_name == "Conv2D"]
    assert [path.split("/")[0] for path in (*conv, *dense)] == ["encoder", "classifier", "classifier"]
    assert [one for one in ops.values() if not one.endswith(("Neg", "AddV2"))] == [
        f"{conv[0]}:Conv2D",
        f"{dense[0]}:MatMul",
        f"{dense[1]}:MatMul",
    ]
    assert found["encoder"].is_container
    assert not found[dense[0]].is_container
    # 8 x 8 with a 3 x 3 kernel, unpadded: 6 x 6 of 4 channels.
    assert found[conv[0]].output_shape in ("(2, 6, 6, 4)", "(None, 6, 6, 4)")
    assert found["encoder"].output_shape.endswith(f"{6 * 6 * 4})")


def test_a_shared_layer_has_one_path_for_all_its_calls() -> None:
    ops, found = recorded(models.siamese(), tf.zeros((2, models.WIDTH)))
    products = [one for one in ops.values() if one.endswith("MatMul")]
    assert products.count("shared:MatMul") == 2
    assert products.count("middle:MatMul") == 1
    assert list(found).count("shared") == 1


def test_ops_outside_every_layer_have_none_and_bare_operations_count_as_layers() -> None:
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.ops.tanh(layers.Dense(3, name="dense")(inputs)))
    ops, found = recorded(model, tf.zeros((2, 3)))
    assert ops["outside"] == "None:Neg"
    (tanh,) = [layer for layer in found.values() if layer.class_name == "Tanh"]
    assert f"{tanh.path}:Tanh" in ops.values()


def test_activation_inside_a_layer_belongs_to_the_layer() -> None:
    ops, _ = recorded(models.two_towers(), tf.zeros((2, models.WIDTH)))
    assert {one for one in ops.values() if one.endswith("Tanh")} == {
        f"{tower}_{index}:Tanh" for tower in "ab" for index in range(4)
    }


def test_keras_is_left_as_it_was() -> None:
    before = keras.layers.Layer.__call__, keras.Operation.__call__
    recorded(models.mlp(), tf.zeros((2, models.WIDTH)))
    assert (keras.layers.Layer.__call__, keras.Operation.__call__) == before
