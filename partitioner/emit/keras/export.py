"""Write a placed model as a SavedModel that plain TensorFlow loads, and read it back as a trainable model.

The SavedModel holds `predict(x)`, `evaluate(x, y)` and `train_step(x, y)`, the signature `serving_default`, and every
variable of every replica, optimizer slots included: plain TensorFlow could not make missing copies. Facts that
TensorFlow does not store (which variables train, the optimizer's settings) are in `assets.extra/`, the folder that
SavedModel reserves for its users.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import msgspec
import tensorflow as tf

from partitioner.emit.graph.graph_def import bodies, rename_devices
from partitioner.emit.graph.mirrored_variable import each_copy
from partitioner.emit.graph.variables import held_variable
from partitioner.emit.keras.program import Specs
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.ir.devices import DeviceName
from partitioner.ir.json import from_json, to_json
from partitioner.ir.step import RESULTS, StepKind

EXTRA = Path("assets.extra") / "partition.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedVariable:
    """A variable of the model, in the order of `model_variables` in the SavedModel."""

    path: str
    trainable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModelExtra:
    """Facts about a placed model beside its SavedModel. `optimizer` and `loss` are Keras' own serialized form."""

    name: str
    devices: tuple[str, ...]
    kinds: tuple[StepKind, ...]
    variables: tuple[SavedVariable, ...]
    optimizer: dict[str, Any] | None = None
    loss: Any = None
    is_staged: bool = False


def export_saved_model(placed: Any, path: str | Path) -> None:
    """Write `placed` (a PlacedModel) to the directory `path`, replacing a SavedModel that is there.

    The devices in it are the planned devices, even if other devices replace them here.
    """
    path = Path(path)
    root: Any = tf.Module()  # names of Keras models need not be names of modules
    root.model_variables = [each_copy(held_variable(variable))[0] for variable in placed.variables_of_model]
    optimizer: Any = placed.optimizer if placed.compiled else None
    slots = optimizer.variables if optimizer is not None and optimizer.built else []
    root.optimizer_variables = [each_copy(held_variable(variable))[0] for variable in slots]
    own_metrics = placed.model.metrics_variables if placed.own_steps and placed.model is not None else []
    root.metric_variables = [each_copy(held_variable(variable))[0] for variable in own_metrics]
    kinds: list[StepKind] = []
    serving: Any = None
    for kind, specs in placed.program.signatures():
        function = placed.program.function(kind, specs, results=RESULTS[kind])
        if kind is StepKind.PREDICT:
            root.predict, serving = _predict(function, specs)
        elif kind is StepKind.EVALUATE:
            root.evaluate = _with_targets(function, specs)
        else:
            root.train_step = _with_targets(function, specs)
        kinds.append(kind)
    # TensorFlow must find them: variables outside Keras' lists (random state) and of other replicas, and tables.
    root.copies = [list(copies) for copies in placed.program.copies().values()]
    root.resources = placed.resources_of_model
    options = tf.saved_model.SaveOptions(
        experimental_variable_policy=tf.saved_model.experimental.VariablePolicy.SAVE_VARIABLE_DEVICES,
        experimental_io_device=HOST,  # a worker would write to its own disk
        # Gradients are ops of `train_step`. Gradients of imported ops could not be traced again: they capture tensors
        # of the graph that the model was traced in (the beta of a swish).
        experimental_custom_gradients=False,
    )
    if (path / "saved_model.pb").exists():
        shutil.rmtree(path)
    signatures = {} if serving is None else {"serving_default": serving}
    tf.saved_model.save(root, str(path), signatures=signatures, options=options)
    extra = SavedModelExtra(
        name=placed.name,
        devices=tuple(placed.program.devices),
        kinds=tuple(kinds),
        variables=tuple(SavedVariable(path=v.path, trainable=v.trainable) for v in placed.variables_of_model),
        optimizer=None if optimizer is None else dict(keras.optimizers.serialize(optimizer)),  # pyright: ignore[reportArgumentType, reportCallIssue]
        loss=_serialized(placed.loss) if placed.compiled else None,
        is_staged=placed.program.is_staged,
    )
    (path / EXTRA).parent.mkdir()
    (path / EXTRA).write_text(to_json(extra, indent=2) + "\n", encoding="utf-8")
    stand_ins = {actual: planned for planned, actual in placed.program.devices.items() if actual != planned}
    _settle_nodes(path / "saved_model.pb", stand_ins)


def read_extra(path: Path) -> SavedModelExtra:
    """Read what `export_saved_model` wrote beside the graph.

    Raises:
        FileNotFoundError: There is no such file: the SavedModel is not ours.
        msgspec.ValidationError: The file is damaged.
    """
    return from_json((path / EXTRA).read_bytes(), SavedModelExtra)


def _predict(function: Any, specs: Specs) -> tuple[Any, Any]:
    @tf.function(input_signature=[specs[0]], autograph=False)
    def predict(x: Any) -> Any:
        return function(x, None, None)["y_pred"]

    flat = tf.nest.flatten(specs[0])
    names = [spec.name or f"input_{index}" for index, spec in enumerate(flat)]
    named = [tf.TensorSpec(s.shape, s.dtype, name=_identifier(n)) for n, s in zip(names, flat, strict=True)]

    @tf.function(input_signature=named, autograph=False)
    def serve(*values: Any) -> dict[str, Any]:
        outputs = function(tf.nest.pack_sequence_as(specs[0], values), None, None)["y_pred"]
        if isinstance(outputs, dict):
            return outputs
        return {f"output_{index}": value for index, value in enumerate(tf.nest.flatten(outputs))}

    return predict, serve


def _with_targets(function: Any, specs: Specs) -> Any:
    given = [spec for spec in specs[:2] if spec is not None]  # a step of the model's own may take no targets

    @tf.function(input_signature=given, autograph=False)
    def run(x: Any, y: Any = None) -> dict[str, Any]:
        return function(x, y, None)

    return run


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _serialized(loss: Any) -> Any:
    try:
        value = keras.saving.serialize_keras_object(loss)
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return None
    return value


def _settle_nodes(path: Path, retarget: Mapping[str, str]) -> None:
    """Rename devices in a saved_model.pb, and put the nodes that TensorFlow added (calls, returns) on the host.

    Names of custom gradients are removed: the gradients are not in the file, and TensorFlow would warn about each.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString(path.read_bytes())
    for meta in message.meta_graphs:
        rename_devices(meta.graph_def, retarget)
        for node in (node for _, nodes in bodies(meta.graph_def) for node in nodes):
            node.device = node.device or HOST
            node.attr.pop("_gradient_op_type", None)
        for saved in meta.object_graph_def.nodes:
            if saved.HasField("variable") and saved.variable.device:
                device = DeviceName.parse(saved.variable.device).canonical
                saved.variable.device = retarget.get(device, device)
    path.write_bytes(message.SerializeToString(deterministic=True))
