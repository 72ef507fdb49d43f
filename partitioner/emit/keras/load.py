"""Read a placed SavedModel back as a trainable Keras model, without its Python code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import msgspec
import tensorflow as tf

from partitioner.emit.cluster.runtime import set_up_devices
from partitioner.emit.graph.mirrored_variable import mirrored
from partitioner.emit.keras.export import EXTRA, SavedModelExtra, read_extra
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.emit.keras.program import Specs, cast_integers
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.errors import ModelError, UsageError
from partitioner.ir.step import StepKind

_NAMES = {StepKind.PREDICT: "predict", StepKind.EVALUATE: "evaluate", StepKind.TRAIN: "train_step"}


class SavedProgram:
    """The functions of a SavedModel that `export_saved_model` wrote. Their signatures are fixed."""

    def __init__(self, root: Any, extra: SavedModelExtra) -> None:
        self.devices = {device: device for device in extra.devices}
        self.is_staged = extra.is_staged
        self._root = root
        self._functions = {kind: getattr(root, _NAMES[kind]) for kind in extra.kinds}

    def function(self, kind: StepKind, specs: Specs, *, results: Sequence[str] | None = None) -> Any:
        """The saved function of a kind, called with (x, y, sample_weight); it returns all its outputs.

        Raises:
            UsageError: The kind was not saved, or the arguments do not have its signature.
        """
        if kind not in self._functions:
            raise UsageError(
                f"the saved model has no {kind.value} step, only {', '.join(self._functions)}",
                help="it was planned for inference; plan it for training",
            )
        if specs[2] is not None:
            raise UsageError("the saved model takes no sample weights", help="place(build_model(), plan) does")
        function = self._functions[kind]
        if kind is StepKind.PREDICT:
            return lambda x, y, w: {"y_pred": function(x)}
        has_targets = len(self._signature(kind)) > 1
        return lambda x, y, w: function(x, y) if has_targets else function(x)

    def standardize(self, kind: StepKind, arguments: Specs) -> Specs:
        """Arguments with the integer widths of the saved signature."""
        if kind not in self._functions:
            return arguments
        saved = self._signature(kind)
        return (*cast_integers(arguments[: len(saved)], saved), *arguments[len(saved) :])

    def signatures(self) -> list[tuple[StepKind, Specs]]:
        """The saved signatures."""
        signatures = []
        for kind in self._functions:
            x, *targets = self._signature(kind)
            signatures.append((kind, (x, targets[0] if targets else None, None)))
        return signatures

    def copies(self) -> dict[str, tuple[Any, ...]]:
        """The variable of each replica, for every variable of the saved model."""
        return {f"{copies[0].name}_{index}": tuple(copies) for index, copies in enumerate(self._root.copies)}

    def forget(self) -> None:
        """Nothing to drop: the saved training step keeps its loss and optimizer."""

    def refuse_moved(self) -> None:
        """Nothing to refuse: nobody else has its variables."""

    def _signature(self, kind: StepKind) -> tuple[Any, ...]:
        return self._functions[kind].concrete_functions[0].structured_input_signature[0]


def load_placed(path: Path) -> PlacedModel:
    """The trainable model in the SavedModel at `path`.

    Logical CPU devices replace missing CPU devices; other devices must be present.

    Raises:
        ModelError: `path` is not a placed SavedModel, or is damaged.
        UsageError: Its devices cannot be made available.
    """
    try:
        extra = read_extra(path)
    except FileNotFoundError as error:
        raise ModelError(
            f"{path} is not a placed model: it has no {EXTRA}", help="give the directory that `partition` wrote"
        ) from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path / EXTRA} is damaged: {error}") from error
    absent = {d: r for d, r in set_up_devices(extra.devices).items() if d != r}
    if absent:
        raise UsageError(
            f"the placed model runs on {', '.join(absent)}, which this machine does not have",
            help="place it anew: partitioner.place(model, partitioner.plan(model, devices=[...]))",
        )
    options = tf.saved_model.LoadOptions(
        experimental_variable_policy=tf.saved_model.experimental.VariablePolicy.SAVE_VARIABLE_DEVICES,
        experimental_io_device=HOST,  # a worker would read from its own disk
    )
    root = tf.saved_model.load(str(path), options=options)
    whole = {id(copies[0]): mirrored(copies) for copies in root.copies}
    variables = [
        _keras_variable(whole.get(id(held), held), saved.path, saved.trainable)
        for held, saved in zip(root.model_variables, extra.variables, strict=True)
    ]
    program = SavedProgram(root, extra)
    placed = PlacedModel(program, model=None, name=extra.name, variables=variables, resources=root.resources)
    placed.own_metric_variables = [whole.get(id(held), held) for held in root.metric_variables]
    if extra.optimizer is not None:
        _compile(placed, extra, [whole.get(id(held), held) for held in root.optimizer_variables])
    return placed


def _keras_variable(held: Any, path: str, trainable: bool) -> Any:
    with tf.device(held.device):
        variable = keras.Variable(held, trainable=trainable, dtype=held.dtype.name, name=path.split("/")[-1])
    variable._value = held
    return variable


def _compile(placed: PlacedModel, extra: SavedModelExtra, slots: Sequence[Any]) -> None:
    optimizer = keras.optimizers.deserialize(extra.optimizer)
    if slots:
        optimizer.build([v for v in placed.variables_of_model if v.trainable])
        for variable, held in zip(optimizer.variables, slots, strict=True):
            variable._value = held
    loss = keras.saving.deserialize_keras_object(extra.loss) if isinstance(extra.loss, Mapping) else extra.loss
    placed.compile(optimizer=optimizer, loss=loss)
