"""A whole step lowered: phases, layers, what sits together, shapes, and an identity that survives a rebuild."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import count
from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from captures import BATCH, capture
from keras import layers

from partitioner.emit.graph.graph_def import place_graph_def, register_functions
from partitioner.errors import ModelError
from partitioner.ir.graph_def import producer, prune
from partitioner.ir.op_graph import Op, OpGraph, Phase, VariableKind
from partitioner.ir.step import CapturedStep, StepKind

RUNS = count()


@cache
def graph_of(name: str) -> OpGraph:
    return capture(models.MODELS[name]()).graph


def of_type(graph: OpGraph, *types: str) -> list[Op]:
    return [op for op in graph.ops if op.type in types]


def groups_of_variables(graph: OpGraph) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for op in graph.ops:
        for variable in op.variables:
            found.setdefault(variable, set()).add(op.colocation_group or op.name)
    return found


def test_matrix_products_of_a_perceptron_by_phase_and_layer() -> None:
    products = Counter((op.phase, op.layer) for op in of_type(graph_of("mlp"), "MatMul"))
    names = ["hidden_0", "hidden_1", "hidden_2", "scores"]
    assert products == {
        **{(Phase.FORWARD, name): 1 for name in names},
        # Gradients by weights and by inputs; the first layer's inputs need none.
        **{(Phase.BACKWARD, name): 2 for name in names[1:]},
        (Phase.BACKWARD, "hidden_0"): 1,
    }


def test_backward_products_sit_with_the_forward_product_of_their_layer() -> None:
    graph = graph_of("mlp")
    for name in ("hidden_0", "hidden_1", "scores"):
        assert len({op.colocation_group for op in of_type(graph, "MatMul") if op.layer == name}) == 1


@pytest.mark.parametrize("name", ["mlp", "resnet", "transformer", "tied", "lstm", "branching", "float16"])
def test_every_variable_has_one_group_shared_with_its_slots(name: str) -> None:
    graph = graph_of(name)
    groups = groups_of_variables(graph)
    assert {variable: len(found) for variable, found in groups.items() if len(found) != 1} == {}
    slots = [v for v in graph.variables if v.kind is VariableKind.SLOT]
    trained = [v for v in graph.variables if v.kind is VariableKind.PARAMETER]
    per_parameter = 1 if name == "resnet" else 2  # momentum, or Adam's two
    assert Counter(slot.parameter for slot in slots) == {v.name: per_parameter for v in trained}
    for slot in slots:
        assert groups[slot.name] == groups[slot.parameter]
        assert slot.spec.shape == graph.variable[slot.parameter].spec.shape
    assert len(set.union(*(groups[v.name] for v in trained))) > 1


def test_backward_ops_say_which_forward_op_they_differentiate() -> None:
    graph = graph_of("mlp")
    backward = [op for op in graph.ops if op.phase is Phase.BACKWARD]
    assert {graph.op[op.differentiates].phase for op in backward} == {Phase.FORWARD}
    # A product has two gradients, the first layer's only that of its weights.
    products = Counter(op.differentiates for op in backward if op.type == "MatMul")
    assert sorted(products.values()) == [1, 2, 2, 2]
    assert {graph.op[name].type for name in products} == {"MatMul"}
    assert not [op for op in graph.ops if op.differentiates and op.phase is not Phase.BACKWARD]


@pytest.mark.parametrize("name", ["mlp", "float16", "lstm", "branching"])
def test_all_of_the_backward_pass_scales_with_the_seed(name: str) -> None:
    step = capture(models.MODELS[name]())
    seed = step.graph.tensor[step.seed]
    assert step.graph.op[seed.producer].phase is Phase.BACKWARD
    assert seed.spec.shape == ()
    x, y = models.DATA[name](BATCH)
    node = next(node for node in step.graph_def.node if node.name == seed.producer)
    (number,) = node.attr["value"].tensor.float_val
    assert number == 1
    once = gradients(step, x, y)
    node.attr["value"].tensor.float_val[0] = 0.25
    for small, large in zip(gradients(step, x, y), once, strict=True):
        np.testing.assert_allclose(small, 0.25 * large, rtol=1e-3, atol=1e-6)
    assert any(np.abs(one).max() > 1e-3 for one in once)


def gradients(step: CapturedStep, x: Any, y: Any) -> list[Any]:
    """The gradients that `step.graph_def` computes, those of embeddings by their values."""
    wanted = [g[0] if isinstance(g, tuple) else g for g in step.outputs["gradients"]]
    graph_def = prune(step.graph_def, [*map(producer, wanted), *map(producer, step.inputs)])
    # Under their own names, functions of loops are forgotten with the graph they were traced in, also while they run.
    graph_def = place_graph_def(graph_def, dict.fromkeys(step.graph.op, "/device:CPU:0"), suffix=f"run_{next(RUNS)}")
    register_functions(graph_def)
    live = {node.name for node in graph_def.node}

    @tf.function(autograph=False, input_signature=tf.nest.flatten(step.specs[:2]))
    def run(*arguments: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        outside = {f"{n}:0": graph.capture(external) for n, external in step.captures.items() if n in live}
        replaced = dict(zip(step.inputs, arguments, strict=True)) | outside
        return tf.graph_util.import_graph_def(graph_def, replaced, return_elements=wanted, name="")

    arguments = [tf.cast(v, spec.dtype) for v, spec in zip((x, y), step.specs[:2], strict=True)]
    return [found.numpy() for found in run(*arguments)]


def test_a_step_that_differentiates_nothing_has_no_seed() -> None:
    assert capture(models.mlp(), StepKind.EVALUATE).seed == ""


def test_ops_that_take_variables_are_stateful_and_arithmetic_is_not() -> None:
    for op in graph_of("transformer").ops:
        assert op.stateful or not op.variables
    assert not any(op.stateful for op in of_type(graph_of("transformer"), "MatMul", "Softmax", "Const", "Mul"))


def test_parameters_count_as_keras_counts_them() -> None:
    for name in ("mlp", "resnet", "transformer", "tied", "siamese"):
        model = models.MODELS[name]()
        trained = sum(v.value.shape.num_elements() for v in model.trainable_variables)
        assert capture(model).graph.num_parameters == trained


def test_frozen_parameters_are_state_without_gradient() -> None:
    graph = graph_of("frozen")
    frozen = [v for v in graph.variables if v.layer == "hidden_1"]
    assert [v.kind for v in frozen] == [VariableKind.STATE] * 2
    products = [op for op in of_type(graph, "MatMul") if op.layer == "hidden_1"]
    assert Counter(op.phase for op in products) == {Phase.FORWARD: 1, Phase.BACKWARD: 1}


def test_shapes_are_those_of_the_batch_and_of_a_last_partial_batch_in_the_graph() -> None:
    model = models.mlp()
    step = capture(model)
    (scores,) = [op for op in of_type(step.graph, "BiasAdd", "AddV2") if op.outputs[0] == step.outputs["y_pred"]]
    assert step.graph.tensor[scores.outputs[0]].spec.shape == (BATCH, models.CLASSES)
    assert step.graph.assumed_shapes == ()
    (x,) = [node for node in step.graph_def.node if f"{node.name}:0" == step.inputs[0]]
    assert [dim.size for dim in x.attr["shape"].shape.dim] == [-1, models.WIDTH]


def test_a_step_is_pruned_to_what_runs() -> None:
    step = capture(models.mlp(), StepKind.PREDICT)
    assert step.side_effects == ()
    assert {op.phase for op in step.graph.ops} == {Phase.FORWARD}
    assert "loss" not in step.outputs
    assert {v.kind for v in step.graph.variables} == {VariableKind.STATE}


def test_what_changes_variables_runs_though_nothing_reads_it() -> None:
    step = capture(models.resnet())
    moving = {v.name for v in step.graph.variables if "moving" in v.name}
    assert len(moving) == 6
    written = {v for name in step.side_effects for v in step.graph.op[name].variables}
    assert moving <= written


def test_gradients_of_embeddings_stay_sparse() -> None:
    step = capture(models.transformer())
    sparse = [g for g in step.outputs["gradients"] if isinstance(g, tuple)]
    assert len(sparse) == 2


def test_a_learning_rate_is_read_once_for_all_parameters() -> None:
    step = capture(models.mlp())
    reads = [op for op in of_type(step.graph, "ReadVariableOp") if "adam/learning_rate" in op.variables[0]]
    assert len(reads) <= 1


@pytest.mark.parametrize("join", [layers.Add, layers.Concatenate])
def test_gradients_of_a_skip_connection_are_added_where_it_begins(join: type[keras.Layer]) -> None:
    """By TensorFlow they would be where it ends: two devices that share the layers between would send them there and
    back."""
    x = keras.Input((8,), batch_size=None)
    start = layers.Dense(8, activation="relu", name="start")(x)
    middle = layers.Dense(8, activation="relu", name="middle")(start)
    last = layers.Dense(8, activation="relu", name="last")(middle)
    end = join(name="end")([start, last])
    graph = capture(keras.Model(x, layers.Dense(4, name="scores")(end))).graph
    (added,) = [op for op in of_type(graph, "AddN") if op.phase is Phase.BACKWARD]
    assert {graph.op[source].layer for source in graph.sources[added.name]} == {"end", "middle"}
    assert added.layer == "middle"
    assert added.colocation_group == graph.op[added.differentiates].colocation_group


def test_no_identity_n_holds_all_gradients_back() -> None:
    assert [op for op in of_type(graph_of("mlp"), "IdentityN") if op.phase is Phase.UPDATE] == []


def test_random_state_and_loss_trackers_belong_to_keras() -> None:
    for name in ("regularized", "dict_of_outputs"):
        step = capture(models.MODELS[name]())
        assert all(isinstance(v, keras.Variable) for v in step.variables.values()), name


def test_loops_are_one_op_with_the_layer_that_makes_them() -> None:
    loops = of_type(graph_of("lstm"), "While", "StatelessWhile")
    assert Counter(op.phase for op in loops) == {Phase.FORWARD: 2, Phase.BACKWARD: 2}
    assert len({op.layer for op in loops}) == 2
    by_layer = {op.layer: op.colocation_group for op in loops}
    assert all(op.colocation_group == by_layer[op.layer] for op in loops)


def named(prefix: str, activation: str = "relu", units: int = 5) -> keras.Model:
    inputs = keras.Input((3,), name=f"{prefix}_in")
    x = layers.Dense(units, activation=activation, name=f"{prefix}_a")(inputs)
    return keras.Model(inputs, layers.Dense(2, name=f"{prefix}_b")(x), name=prefix)


def fingerprint(model: keras.Model, **options: Any) -> str:
    return capture(model, **options).graph.fingerprint


def test_fingerprint_does_not_change_with_names_loss_or_optimizer() -> None:
    first = fingerprint(named("one"))
    assert fingerprint(named("two")) == first
    assert fingerprint(named("one"), loss="mae", optimizer="sgd") == first


@pytest.mark.parametrize("other", [{"activation": "tanh"}, {"units": 6}])
def test_fingerprint_changes_with_what_is_computed(other: dict[str, Any]) -> None:
    assert fingerprint(named("one", **other)) != fingerprint(named("one"))


def test_fingerprint_changes_with_the_wiring() -> None:
    def wired(swap: bool) -> keras.Model:
        inputs = keras.Input((3,))
        a, b = layers.Dense(3, activation="relu")(inputs), layers.Dense(3)(inputs)
        return keras.Model(inputs, layers.Subtract()([b, a] if swap else [a, b]))

    assert fingerprint(wired(True)) != fingerprint(wired(False))


def test_a_model_without_anything_to_train() -> None:
    inputs = keras.Input((3,))
    step = capture(keras.Model(inputs, layers.ReLU()(inputs)), loss="mse")
    assert {op.phase for op in step.graph.ops} == {Phase.FORWARD}
    assert (step.trainable, step.seed, step.outputs.keys()) == ((), "", {"y_pred", "loss"})


def test_a_model_that_cannot_be_traced_says_where() -> None:
    class Broken(layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.matmul(x, tf.zeros((7, 7)))

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    inputs = keras.Input((3,))
    outputs = layers.Dense(3)(Broken()(inputs))
    with pytest.raises(ModelError, match="cannot trace the train step") as caught:
        capture(keras.Model(inputs, outputs), loss="mse")
    assert "test_lower.py" in (caught.value.where or "")
    assert any("Dimensions must be equal" in note for note in caught.value.notes)


def test_a_model_that_fails_in_pythons_own_library_says_where_in_its_own() -> None:
    """Python's `json`, or whatever raised, was said to be where."""

    class Broken(layers.Layer):
        def call(self, x: Any) -> Any:
            return x * json.loads("not a number")

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    inputs = keras.Input((3,))
    with pytest.raises(ModelError, match="cannot trace the train step") as caught:
        capture(keras.Model(inputs, layers.Dense(3)(Broken()(inputs))), loss="mse")
    assert "test_lower.py" in (caught.value.where or "")
    assert not any("targets" in note for note in caught.value.notes)


def test_tracing_again_does_not_build_the_optimizer_again() -> None:
    """A loss scaling optimizer makes a new scale whenever it is built, and the one it had learned is lost."""
    model = models.float16()
    capture(model)
    before = [id(variable) for variable in model.optimizer.variables]
    model.optimizer.dynamic_scale.assign(8.0)
    capture(model, StepKind.EVALUATE)
    capture(model)
    assert [id(variable) for variable in model.optimizer.variables] == before
    assert float(model.optimizer.dynamic_scale) == 8.0
