"""The written model: plain TensorFlow runs it with a device on every op, and ours trains on from where it was."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import partitioner
from partitioner.ir.devices import DeviceName

# Runs in a process that cannot import this package: what is written must not need it.
_LOAD = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("partitioner", "cost_models"):
                raise ImportError(f"{name} is blocked")

    sys.meta_path.insert(0, Blocker())
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    root = tf.saved_model.load(sys.argv[1])
    data = np.load(sys.argv[2])
    x, y = tf.constant(data["x"]), tf.constant(data["y"], tf.int32)
    served = root.signatures["serving_default"](x)["output_0"].numpy()
    predicted = root.predict(x).numpy()
    losses = [float(root.train_step(x, y)["loss"]) for _ in range(2)]
    np.savez(
        sys.argv[3],
        served=served, predicted=predicted, losses=losses, evaluated=root.evaluate(x, y)["loss"]
    )
"""


@pytest.fixture(scope="module")
def placed() -> Any:
    keras.utils.set_random_seed(0)
    model = models.mlp()
    placed = partitioner.auto_place(
        model, devices=["CPU:1", "CPU:2"], batch_size=8, strategy="layer-split", time_limit=5
    )
    placed.fit(*models.vectors(32), verbose=0)
    return placed


@pytest.fixture(scope="module")
def exported(placed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "placed_model"
    placed.export(path)
    return path


def devices_in(path: Path) -> set[str]:
    """Every device of a node or variable in a SavedModel; the empty one where there is none.

    TensorFlow's own nodes that write and read checkpoints name the host in short (`/device:CPU:*`).
    """
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((path / "saved_model.pb").read_bytes())
    (meta,) = message.meta_graphs
    nodes = [meta.graph_def.node, *(function.node_def for function in meta.graph_def.library.function)]
    variables = [node.variable for node in meta.object_graph_def.nodes if node.HasField("variable")]
    found = {node.device for group in nodes for node in group} | {v.device for v in variables if v.device}
    return {device for device in found if not device.startswith("/device:CPU:")}


def names(*short: str) -> set[str]:
    return {DeviceName.parse(name).canonical for name in short}


def test_every_node_has_a_device(exported: Path) -> None:
    assert devices_in(exported) == names("CPU:0", "CPU:1", "CPU:2")


def test_plain_tensorflow_gets_the_same_numbers_without_this_package(
    placed: Any, exported: Path, tmp_path: Path
) -> None:
    x, y = models.vectors(8)
    np.savez(tmp_path / "in.npz", x=x, y=y)
    command = [sys.executable, "-I", "-c", textwrap.dedent(_LOAD), str(exported)]
    result = subprocess.run(
        [*command, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = np.load(tmp_path / "out.npz")
    expected = placed.predict(x, verbose=0)
    np.testing.assert_allclose(found["served"], expected, rtol=1e-6)
    np.testing.assert_allclose(found["predicted"], expected, rtol=1e-6)
    before = placed.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    assert found["losses"][0] == pytest.approx(before, rel=1e-6)
    assert found["losses"][0] > found["losses"][1] > found["evaluated"]


def test_a_loaded_model_trains_on_as_the_original_would(placed: Any, exported: Path) -> None:
    loaded = partitioner.load(exported)
    x, y = models.vectors(24)
    histories = []
    for model in (loaded, placed):
        keras.utils.set_random_seed(1)
        histories.append(model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"])
    assert histories[0] == pytest.approx(histories[1], rel=1e-6)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), placed.predict(x, verbose=0), rtol=1e-6)
    homes = [DeviceName.parse(v.value.device) for v in placed.model.variables]
    assert [DeviceName.parse(v.value.device) for v in loaded.variables_of_model] == homes
    slots = [DeviceName.parse(v.value.device) for v in placed.optimizer.variables]
    assert [DeviceName.parse(v.value.device) for v in loaded.optimizer.variables] == slots


def test_a_loaded_model_says_what_it_cannot_do(exported: Path, tmp_path: Path) -> None:
    loaded = partitioner.load(exported)
    with pytest.raises(partitioner.UsageError, match="Adam"):
        loaded.compile("sgd", loaded.loss)
    with pytest.raises(partitioner.UsageError, match=r"save to \.keras"):
        loaded.save(tmp_path / "model.keras")
    x, y = models.vectors(8)
    with pytest.raises(partitioner.UsageError, match="sample weights"):
        loaded.train_on_batch(x, y, sample_weight=np.ones(8, np.float32))


def test_a_loaded_model_can_be_exported_again(placed: Any, exported: Path, tmp_path: Path) -> None:
    loaded = partitioner.load(exported)
    loaded.export(tmp_path / "again")
    again = partitioner.load(tmp_path / "again")
    x, _ = models.vectors(8)
    np.testing.assert_array_equal(again.predict(x, verbose=0), loaded.predict(x, verbose=0))
    assert devices_in(tmp_path / "again") == devices_in(exported)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "lstm", "dict_of_outputs", "float16", "branching"])
def test_models_with_random_state_loops_and_many_outputs_come_back(name: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    data = models.DATA[name]
    original = partitioner.auto_place(
        models.MODELS[name](), devices=["CPU:1", "CPU:2"], batch_size=8, strategy="layer-split", time_limit=5
    )
    original.export(tmp_path / "model")
    loaded = partitioner.load(tmp_path / "model")
    x, y = data(24)
    losses = []
    for model in (loaded, original):
        keras.utils.set_random_seed(1)
        losses.append(model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_swish_and_a_name_that_is_no_identifier_are_written(tmp_path: Path) -> None:
    """EfficientNetV2 has both. TensorFlow failed at what a swish's gradient captures, and wants modules' names so."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((models.WIDTH,))
    x = keras.layers.Dense(16, activation="silu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(models.CLASSES)(x), name="no-identifier.v2")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    original = partitioner.auto_place(
        model, devices=["CPU:1", "CPU:2"], batch_size=8, strategy="layer-split", time_limit=5
    )
    original.export(tmp_path / "model")
    loaded = partitioner.load(tmp_path / "model")
    x, y = models.vectors(24)
    losses = [model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history["loss"] for model in (loaded, original)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert loaded.name == "no-identifier.v2"
    assert b"_gradient_op_type" not in (tmp_path / "model" / "saved_model.pb").read_bytes()


def test_lookup_tables_are_written(tmp_path: Path) -> None:
    """Bug: TensorFlow would not save functions with tables that nothing it was given holds."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((1,), dtype="string")
    x = keras.layers.Embedding(4, 8)(keras.layers.StringLookup(vocabulary=["red", "green"])(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))
    model.compile("sgd", "mse", jit_compile=False)
    devices = ["CPU:1", "CPU:2"]
    original = partitioner.auto_place(model, devices=devices, batch_size=8, strategy="layer-split", time_limit=5)
    assert partitioner.verify(model, original).passed  # what looks something up runs where the table is
    assert any("lookup tables are on the host" in note for note in original.plan.notes)
    original.export(tmp_path / "model")
    loaded = partitioner.load(tmp_path / "model")
    loaded.export(tmp_path / "again")
    x = tf.constant([["red"], ["green"], ["blue"]])
    for one in (loaded, partitioner.load(tmp_path / "again")):
        np.testing.assert_array_equal(one.predict(x, verbose=0), original.predict(x, verbose=0))


def test_a_directory_that_is_no_placed_model(tmp_path: Path) -> None:
    with pytest.raises(partitioner.ModelError, match="not a placed model"):
        partitioner.load(tmp_path)


def test_damaged_extras_are_reported(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "assets.extra").mkdir()
    text = json.loads((exported / "assets.extra" / "partition.json").read_text())
    del text["devices"]
    (tmp_path / "assets.extra" / "partition.json").write_text(json.dumps(text))
    with pytest.raises(partitioner.ModelError, match="devices"):
        partitioner.load(tmp_path)


def test_gpus_that_are_not_here_are_stood_in_for_but_named_in_what_is_written(tmp_path: Path) -> None:
    model = models.mlp()
    plan = partitioner.plan(
        model,
        devices="GPU:0,GPU:1",
        hardware="a100-80gb",
        batch_size=8,
        strategy="layer-split",
        time_limit=5,
    )
    placed = partitioner.place(model, plan)
    verification = partitioner.verify(model, placed, num_steps=2)
    assert verification.passed
    assert set(verification.ran_on) == names("GPU:0", "GPU:1")
    assert set(verification.ran_on.values()) == names("CPU:1", "CPU:2")
    placed.export(tmp_path / "model")
    assert devices_in(tmp_path / "model") == names("CPU:0", "GPU:0", "GPU:1")
    with pytest.raises(partitioner.UsageError, match="GPU:0"):
        partitioner.load(tmp_path / "model")
