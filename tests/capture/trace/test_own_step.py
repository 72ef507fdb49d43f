"""What is recorded of a step that a model defines: phases, the layer of each gradient, what an optimizer updates."""

from __future__ import annotations

import tensorflow as tf

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.own_step import has_own_step, kinds_of_steps
from partitioner.ir.op_graph import OpGraph, Phase, VariableKind
from partitioner.ir.step import StepKind
from tests import models
from tests.own_steps import SIDE, WIDTH, adversaries, own_train_step


def traced() -> OpGraph:
    x, y = tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None, 3])
    return capture_step(own_train_step(), StepKind.TRAIN, (x, y, None), batch_size=4).graph


def test_gradients_belong_to_the_layers_that_they_differentiate() -> None:
    graph = traced()
    products = [op for op in graph.ops if op.type == "MatMul"]
    assert [(op.phase, op.layer) for op in products] == [
        (Phase.FORWARD, "first"),
        (Phase.FORWARD, "second"),
        (Phase.FORWARD, "last"),
        (Phase.BACKWARD, "last"),
        (Phase.BACKWARD, "last"),
        (Phase.BACKWARD, "second"),
        (Phase.BACKWARD, "second"),
        (Phase.BACKWARD, "first"),
    ]
    alone = [op for op in graph.ops if op.phase is Phase.BACKWARD and not op.layer]
    assert all(op.name.startswith("gradient_tape/compile_loss/") for op in alone if op.inputs)


def test_parameters_and_slots_are_told_by_the_optimizers_that_update_them() -> None:
    spec = tf.TensorSpec([None, SIDE, SIDE, 1])
    graph = capture_step(adversaries(), StepKind.TRAIN, (spec, None, None), batch_size=4).graph
    parameters = {v.name for v in graph.variables if v.kind is VariableKind.PARAMETER}
    assert parameters == {
        *(f"judge/{layer}/{kind}" for layer in ("conv", "score") for kind in ("kernel", "bias")),
        *(f"painter/pixels/{kind}" for kind in ("kernel", "bias")),
    }
    served = {v.parameter for v in graph.variables if v.kind is VariableKind.SLOT}
    assert served == {name for name in parameters if name.startswith("judge/")}  # Adam has slots, SGD has none
    assert {op.layer for op in graph.ops if op.phase is Phase.UPDATE and op.layer} >= {"judge/conv", "painter/pixels"}


def test_the_steps_that_models_can_do() -> None:
    assert kinds_of_steps(models.mlp()) == set(StepKind)
    assert kinds_of_steps(own_train_step()) == set(StepKind)
    assert kinds_of_steps(adversaries()) == {StepKind.TRAIN}
    assert has_own_step(own_train_step(), StepKind.TRAIN)
    assert not has_own_step(own_train_step(), StepKind.EVALUATE)
