"""What a kernel that does the work of several ops tells of each."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import training_objective
from partitioner.hardware.topology import build_topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import parse_devices
from partitioner.ir.step import StepKind
from partitioner.measure.fused import shared_seconds
from partitioner.planner.model.costs import cost_ops


@pytest.fixture(scope="module")
def costed() -> CostedGraph:
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, name="conv"), layers.Flatten()])
    model.compile("sgd", "mse", jit_compile=False)
    specs: tuple[Any, Any, None] = (tf.TensorSpec([None, 8, 8, 3]), tf.TensorSpec([None, 144]), None)
    step = capture_step(model, StepKind.TRAIN, specs, batch_size=2, objective=training_objective(model))
    topology, _ = build_topology(parse_devices("CPU:0"))
    return cost_ops(step.graph, topology)


def named(costed: CostedGraph, op_type: str) -> str:
    return next(op.name for op in costed.graph.ops if op.type == op_type)


def test_a_product_fused_with_its_bias_gets_nearly_all_of_the_time(costed: CostedGraph) -> None:
    product, bias = named(costed, "Conv2D"), named(costed, "BiasAdd")
    found = shared_seconds(costed, {bias: 1.0}, {bias: "_MklNativeConv2DWithBias"})
    # 6 x 6 x 4 x 2 outputs: 2 x 27 FLOPs each in the product, 1 in the bias.
    assert found == pytest.approx({product: 54 / 55, bias: 1 / 55})


def test_a_gradient_of_a_filter_shares_with_that_of_the_bias(costed: CostedGraph) -> None:
    of_filter, of_bias = named(costed, "Conv2DBackpropFilter"), named(costed, "BiasAddGrad")
    forward = {named(costed, "Conv2D"): 3.0}
    kernels = {of_filter: "_MklNativeConv2DBackpropFilterWithBias"}
    found = shared_seconds(costed, forward | {of_filter: 1.0}, kernels)
    assert found.keys() == {named(costed, "Conv2D"), of_filter, of_bias}
    assert found[of_filter] + found[of_bias] == pytest.approx(1.0)
    assert found[of_bias] < found[of_filter] / 20


def test_another_kernel_for_the_same_op_shares_with_nobody(costed: CostedGraph) -> None:
    name = named(costed, "Conv2DBackpropFilter")
    assert shared_seconds(costed, {name: 1.0}, {name: "_MklNativeConv2DBackpropFilter"}) == {name: 1.0}
