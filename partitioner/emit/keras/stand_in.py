"""A Keras model that stands for another: what is asked of it about layers, weights and files, the other answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from partitioner.emit.keras.layer_devices import on_devices_of_layers
from partitioner.emit.keras.summary import summary
from partitioner.errors import UsageError
from partitioner.ir.plan import PlanDocument


class StandIn(keras.Model):
    """A model without layers of its own.

    Args:
        model: The unplaced model that it stands for, or None when it was loaded from a SavedModel, without layers.
        name: Its name.
        plan: The plan of the model, if any.
        variables: The model's variables, when there is no Keras model to hold them.
        resources: Its other TensorFlow resources (lookup tables), in that case.
    """

    def __init__(
        self,
        *,
        model: keras.Model | None,
        name: str,
        plan: PlanDocument | None,
        variables: Sequence[Any],
        resources: Sequence[Any],
    ) -> None:
        super().__init__(name=name)
        self.model = model
        self.plan = plan
        self.own_variables = list(variables)
        self.own_resources = list(resources)

    @property
    def variables_of_model(self) -> list[Any]:
        """The Keras variables of the model itself, without the optimizer's and the metrics'."""
        return list(self.model.variables if self.model is not None else self.own_variables)

    @property
    def resources_of_model(self) -> list[Any]:
        """The lookup tables that the model's layers hold."""
        if self.model is None:
            return list(self.own_resources)
        return _tables(self.model)

    def __getattr__(self, name: str) -> Any:
        """What a placed model does not have itself, such as `inputs` or a `tokenizer`, its model has.

        Methods, such as `generate`, run each layer of the model where its weights are.
        """
        model = self.__dict__.get("model")
        if model is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(model, name)
        return on_devices_of_layers(value, model) if getattr(value, "__self__", None) is model else value

    @property
    def layers(self) -> list[Any]:
        """The layers of the unplaced model; none if it was loaded from a SavedModel."""
        return [] if self.model is None else list(self.model.layers)

    @property
    def input(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The symbolic inputs of the unplaced model."""
        return self._original("find its inputs").input

    @property
    def output(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The symbolic outputs of the unplaced model."""
        return self._original("find its outputs").output

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **options: Any) -> None:
        """Save as the unplaced model would: a `.keras` file that plain Keras loads, and that can be placed again.

        Raises:
            UsageError: The model was loaded from a SavedModel, whose Keras layers are gone; `export` works.
        """
        self._original("save to .keras").save(filepath, overwrite, zipped, **options)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: Any = None) -> None:
        """Save the weights as the unplaced model would; the files are interchangeable."""
        if self.model is None:
            super().save_weights(filepath, overwrite, max_shard_size)
        else:
            self.model.save_weights(filepath, overwrite, max_shard_size)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **options: Any) -> None:
        """Load weights that the placed or the unplaced model saved."""
        if self.model is None:
            super().load_weights(filepath, skip_mismatch, **options)
        else:
            self.model.load_weights(filepath, skip_mismatch, **options)

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """A layer of the unplaced model, as callbacks ask for it.

        Raises:
            UsageError: The model was loaded from a SavedModel, whose Keras layers are gone.
        """
        return self._original("find a layer").get_layer(name=name, index=index)

    def get_config(self) -> dict[str, Any]:
        """The unplaced model, serialized: devices belong to a plan, not to a model's config."""
        return {"model": keras.saving.serialize_keras_object(self._original("read the config"))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """An unplaced model like the one that was placed, with new weights; `partitioner.place` places it."""
        return keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)

    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Any = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """As `keras.Model.summary` of the unplaced model, with a column for devices.

        A model that was loaded from a SavedModel has no layers: Keras' own summary counts its variables.
        """
        if self.model is None or self.plan is None:
            super().summary(line_length, positions, print_fn, expand_nested, show_trainable, layer_range)
            return
        summary(
            self.model,
            self.plan,
            line_length=line_length,
            positions=positions,
            print_fn=print_fn,
            expand_nested=expand_nested,
            show_trainable=show_trainable,
            layer_range=layer_range,
        )

    def _original(self, purpose: str) -> keras.Model:
        if self.model is None:
            raise UsageError(
                f"cannot {purpose}: this model was loaded from a SavedModel, which has no Keras layers",
                help="export(DIR) writes it as a SavedModel again; to get layers, place(build_model(), plan)",
            )
        return self.model


def _tables(model: Any) -> list[Any]:
    held = [value for layer in model._flatten_layers() for value in vars(layer).values()]
    tables = [value for value in held if isinstance(value, tf.saved_model.experimental.TrackableResource)]
    return list({id(table): table for table in tables}.values())
