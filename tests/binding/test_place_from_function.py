"""A model planned and placed from a function: no values while planning, then those of the plain model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import partitioner
from partitioner.emit.graph.mirrored_variable import each_copy
from tests.models import DATA, MODELS
from tests.values import with_values

BATCH = 8


def variables_of(plan: partitioner.Plan) -> list[Any]:
    """The variables of the model that was built for a plan, and of its optimizer."""
    step = plan.traced.step
    return [*plan.traced.model.variables, *(slot for one in step.optimizers for slot in one.variables)]


def planned(build: Callable[[], keras.Model], devices: str = "CPU:1-2", **options: Any) -> partitioner.Plan:
    keras.utils.set_random_seed(0)
    return partitioner.plan(build, devices, **{"batch_size": BATCH, "time_limit": 4, **options})


def plain(build: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(0)
    return build()


def assert_alike(placed: keras.Model, model: keras.Model, data: str) -> None:
    """Equal weights, and equal losses but for roundings."""
    for ours, theirs in zip(placed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    x, y = DATA[data](3 * BATCH)
    ours, theirs = (one.fit(x, y, batch_size=BATCH, shuffle=False, epochs=3, verbose=0) for one in (placed, model))
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"strategy": "layer-split", "microbatches": 2}),
        ("mlp", {"strategy": "mirrored"}),
        ("cnn", {"strategy": "layer-split"}),
    ],
)
def test_no_values_while_planning_then_those_of_the_plain_model(name: str, options: dict[str, Any]) -> None:
    plan = planned(MODELS[name], **options)
    assert len(variables_of(plan)) > len(plan.traced.model.variables)
    assert {path.rpartition("/")[2] for path in with_values(variables_of(plan))} == {"iteration", "learning_rate"}
    placed = partitioner.place(MODELS[name], plan)
    assert placed.model is plan.traced.model
    homes = {copy.device for variable in placed.model.variables for copy in each_copy(variable.value)}
    assert {home[-5:] for home in homes} <= {"CPU:1", "CPU:2"}
    assert_alike(placed, plain(MODELS[name]), name)


def shared_generator() -> keras.Model:
    """Its initializers draw from one generator, so values depend on the order in which they run."""
    drawn = keras.random.SeedGenerator(3)
    normals = [keras.initializers.RandomNormal(seed=drawn) for _ in range(4)]
    layers = [keras.layers.Dense(12, kernel_initializer=normal) for normal in normals]
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_initializers_run_in_the_order_of_the_layers() -> None:
    placed = partitioner.place(shared_generator, planned(shared_generator, strategy="layer-split"))
    assert_alike(placed, plain(shared_generator), "mlp")


def test_each_call_places_another_model() -> None:
    plan = planned(MODELS["mlp"])
    first, second = (partitioner.place(MODELS["mlp"], plan) for _ in range(2))
    assert first.model is not second.model
    x, y = DATA["mlp"](BATCH)
    for placed in (first, second):
        placed.fit(x, y, batch_size=BATCH, verbose=0)
    assert int(second.optimizer.iterations.numpy()) == 1


def test_a_saved_plan_places_a_function(tmp_path: Path) -> None:
    planned(MODELS["mlp"], strategy="layer-split").save(tmp_path / "plan.json")
    keras.utils.set_random_seed(0)
    placed = partitioner.place(MODELS["mlp"], partitioner.Plan.load(tmp_path / "plan.json"))
    assert_alike(placed, plain(MODELS["mlp"]), "mlp")


def test_auto_place_and_explain_take_a_function() -> None:
    placed = partitioner.auto_place(MODELS["mlp"], "CPU:0-1", batch_size=BATCH, strategy="single", time_limit=4)
    x, _ = DATA["mlp"](BATCH)
    assert placed.predict(x, verbose=0).shape == (BATCH, 4)
    assert partitioner.explain(MODELS["mlp"], placed.plan, time_limit=1).limits


def test_a_model_with_values_gets_no_slots_while_planning_and_trains_by_itself_after() -> None:
    model = plain(MODELS["mlp"])
    partitioner.plan(model, "CPU:0-1", batch_size=BATCH, time_limit=4)
    slots = [variable for variable in model.optimizer.variables if "momentum" in variable.path]
    assert slots
    assert not with_values(slots)
    x, y = DATA["mlp"](3 * BATCH)
    histories: Sequence[Any] = [
        one.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"]
        for one in (model, plain(MODELS["mlp"]))
    ]
    assert histories[0] == histories[1]


def test_measuring_leaves_the_model_without_values() -> None:
    plan = planned(MODELS["mlp"], devices="CPU:0", costs="measured")
    assert {path.rpartition("/")[2] for path in with_values(variables_of(plan))} == {"iteration", "learning_rate"}


def test_nothing_keeps_the_values_of_variables_that_moved_nor_the_traced_graph() -> None:
    """TensorFlow's registry of gradients kept the graph, which kept the handles that it captured."""
    model = plain(MODELS["mlp"])
    before = [weakref.ref(variable.value.handle) for variable in model.variables]
    graphs = {id(one) for one in gc.get_objects() if isinstance(one, tf.__internal__.FuncGraph)}
    plan = partitioner.plan(model, "CPU:1-2", batch_size=BATCH, strategy="layer-split", time_limit=4)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, tf.__internal__.FuncGraph) and id(one) not in graphs]
    placed = partitioner.place(model, plan)
    gc.collect()
    assert not [handle for handle in before if handle() is not None]
    assert placed.model is model
