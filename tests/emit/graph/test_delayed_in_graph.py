"""A placed step computes what another device waits for first, and the same numbers as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import networkx as nx
import numpy as np
import pytest
from asking import asked
from keras import layers
from twins import cpus, equal_pair, losses

import partitioner
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import StepKind

ROWS, SIDE = 8, 8


def convolutions() -> keras.Model:
    """Four convolutions with batch normalization: nothing of it may be cut into microbatches."""
    x = inputs = keras.Input((SIDE, SIDE, 2))
    for index in range(4):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"convolution{index}")(x)
        x = layers.Activation("gelu")(layers.BatchNormalization(name=f"normalization{index}")(x))
    model = keras.Model(inputs, layers.Dense(3, name="scores")(layers.Flatten()(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((ROWS, SIDE, SIDE, 2), np.float32), rng.integers(0, 3, ROWS)


def split(model: keras.Model) -> PlanDocument:
    """Two convolutions on each of two devices."""
    first, second = devices = cpus(2)
    pins = {"(convolution|normalization)[01]": first, "(convolution|normalization)[23]|scores": second}
    return partitioner.plan(
        model, **asked(devices=devices, batch_size=ROWS, strategy="layer-split", microbatches=1, pins=pins)
    )


def awaits(placed: Any) -> Callable[[str, str], bool]:
    """Whether the gradient of a layer's weights waits for that of another layer's input."""
    specs = dict(placed.program.signatures())[StepKind.TRAIN]
    graph = placed.program.function(StepKind.TRAIN, specs).graph
    wires = nx.DiGraph()
    for op in graph.get_operations():
        wires.add_edges_from((source.op.name, op.name) for source in op.inputs)
        wires.add_edges_from((source.name, op.name) for source in op.control_inputs)
    step = placed.program.step(StepKind.TRAIN, specs)
    of_layer = {(op.layer, op.type): op.name for op in step.graph.ops}

    def waits(weights: str, inputs: str) -> bool:
        source, target = of_layer[inputs, "Conv2DBackpropInput"], of_layer[weights, "Conv2DBackpropFilter"]
        return nx.has_path(wires, source, target)

    return waits


@pytest.fixture(scope="module")
def plan() -> PlanDocument:
    return split(convolutions())


def test_a_split_step_in_one_piece_delays_gradients(plan: PlanDocument) -> None:
    assert plan.delays_gradients
    waits = awaits(partitioner.place(convolutions(), plan))
    assert waits("convolution3", "convolution2")  # that of the input goes to the other device
    assert not waits("convolution1", "convolution1")  # nobody waits for the device of the first layers


def test_a_plan_that_does_not_delay_them_leaves_them_alone(plan: PlanDocument) -> None:
    # A CPU keeps an order of its own, in which the gradient of a layer's weights waits for none of a layer before.
    assert not awaits(partitioner.place(convolutions(), replace(plan, delays_gradients=False)))(
        "convolution3", "convolution2"
    )


def test_delayed_gradients_are_those_of_the_unplaced_model(plan: PlanDocument) -> None:
    unplaced, model = equal_pair(convolutions)
    placed = partitioner.place(model, plan)
    assert losses(placed, batch()) == pytest.approx(losses(unplaced, batch()), rel=1e-5)


def test_a_plan_from_a_file_delays_them_too(plan: PlanDocument) -> None:
    read = type(plan).from_json(plan.to_json())
    assert read.delays_gradients
    assert awaits(partitioner.place(convolutions(), read))("convolution3", "convolution2")
