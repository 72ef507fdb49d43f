"""The placed model as Keras sees it: compile, fit, evaluate, predict and save are Keras', the steps are placed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from partitioner.emit.cluster.lost_worker import naming_lost_workers
from partitioner.emit.keras.export import export_saved_model
from partitioner.emit.keras.interrupt import interruptible
from partitioner.emit.keras.objective import saved_objective, share_counting, share_objective
from partitioner.emit.keras.options import as_given
from partitioner.emit.keras.program import Program
from partitioner.emit.keras.summary import summary
from partitioner.errors import UsageError
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import StepKind


@keras.saving.register_keras_serializable(package="partitioner")
class PlacedModel(keras.Model):
    """A Keras model whose every step runs on its planned devices.

    It shares its variables with the unplaced model; they are now on their planned devices, optimizer slots beside their
    variables. XLA stays off, because it compiles for one device.

    Args:
        program: The placed functions.
        model: The Keras model they were traced from, or None when they were loaded from a SavedModel.
        name: Name of the model.
        plan: The plan it runs, if any.
        variables: The model's variables, when there is no Keras model to hold them.
        resources: Its other TensorFlow resources (lookup tables), in that case.
        own_steps: The kinds of step that the model defines itself (`train_step`, `test_step`): they are placed as
            traced, and count their metrics themselves.
    """

    is_placed = True

    def __init__(
        self,
        program: Program,
        *,
        model: keras.Model | None,
        name: str,
        plan: PlanDocument | None = None,
        variables: Sequence[Any] = (),
        resources: Sequence[Any] = (),
        own_steps: Collection[StepKind] = (),
    ) -> None:
        super().__init__(name=name)
        self.program = program
        self.model = model
        self.plan = plan
        self.own_variables = list(variables)
        self.own_resources = list(resources)
        self.own_steps = tuple(own_steps)
        self.own_metric_variables: Sequence[Any] = ()
        self._has_warned = False
        self.supports_jit = False
        self.optimizer = None  # Keras sets it in compile(), which an inference plan does without
        self.built = True

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

    def differing_variables(self) -> list[str]:
        """Names of the variables whose bits differ between replicas; between two steps there are none."""
        return [name for name, copies in self.program.copies().items() if len({_bits(copy) for copy in copies}) > 1]

    def replicas_identical(self) -> bool:
        """Whether every variable has the same bits in all replicas."""
        return not self.differing_variables()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Outputs for `inputs`, in inference mode.

        Raises:
            UsageError: `training` is true: the placed training step always includes its gradients.
        """
        if training:
            raise UsageError(
                "a placed model cannot be called with training=True: gradients taken outside would not be placed",
                help="use fit(), train_on_batch() or train_step()",
            )
        return self._run(StepKind.PREDICT, inputs)["y_pred"]

    def __getattr__(self, name: str) -> Any:
        """What a placed model does not have itself, such as `inputs` or a `tokenizer`, its model has."""
        model = self.__dict__.get("model")
        if model is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)

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

    @property
    def metrics(self) -> list[Any]:
        """The metrics that `fit` resets and reports: those of the model, where its own step updates them."""
        return self.model.metrics if self.model is not None and self.own_steps else super().metrics

    def compile(self, *arguments: Any, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `keras.Model.compile`, or as `compile` of a model with its own `train_step`; `jit_compile` stays off.

        Raises:
            UsageError: `jit_compile=True`; or another loss or optimizer for a model that was loaded from a SavedModel,
                whose training step already holds its own.
        """
        if options.get("jit_compile") is True:
            raise UsageError("jit_compile=True: XLA compiles for one device and would undo the placement")
        if self.model is not None and self.own_steps:
            self.model.compile(*arguments, **options)
            self.follow()
        else:
            self._compile(*arguments, **{**options, "jit_compile": False})

    def follow(self) -> None:
        """Be compiled as the model is, whose own step says what it uses."""
        assert self.model is not None
        own: Any = getattr(self.model, "_compile_config", None)
        options = {} if own is None else dict(own.config)
        self.program.forget()
        super().compile(**{**options, "optimizer": self.model.optimizer, "jit_compile": False})
        share_counting(self, self.model)

    def _compile(self, optimizer: Any = "rmsprop", loss: Any = None, **options: Any) -> None:
        if self.model is None and self.compiled:
            optimizer, loss = saved_objective(self, optimizer, loss)
        self.program.forget()
        super().compile(optimizer=optimizer, loss=loss, **options)  # pyright: ignore[reportArgumentType]
        if self.model is not None:
            share_objective(self, self.model, loss, options.get("loss_weights"))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True) -> Any:  # noqa: D102
        if self.model is not None and type(self.model).compute_loss is not keras.Model.compute_loss:
            return self.model._compute_loss(x, y, y_pred, sample_weight, training)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """As `keras.Model.fit`; warns once if the batch size is not the planned one."""
        given = options.get("batch_size", arguments[2] if len(arguments) > 2 else None)
        if self.plan is not None and given not in (None, self.plan.model.batch_size) and not self._has_warned:
            self._has_warned = True
            planned = self.plan.model.batch_size
            warnings.warn(
                f"batches have {given} rows, and the plan is for {planned}: its seconds and bytes do not hold",
                stacklevel=2,
            )
        return super().fit(*arguments, **options)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One placed training step: forward, loss, gradients and update."""
        return self._step_with_metrics(StepKind.TRAIN, data)

    def test_step(self, data: Any) -> dict[str, Any]:
        """One placed evaluation step."""
        return self._step_with_metrics(StepKind.EVALUATE, data)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras makes it; a step in microbatches can be interrupted by Ctrl-C."""
        if force or self.train_function is None:
            super().make_train_function(force=force)
            self.train_function = self._guarded(self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """As Keras makes it; a step in microbatches can be interrupted by Ctrl-C."""
        if force or self.test_function is None:
            super().make_test_function(force=force)
            self.test_function = self._guarded(self.test_function)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        """As Keras makes it; a step in microbatches can be interrupted by Ctrl-C."""
        if force or self.predict_function is None:
            super().make_predict_function(force=force)
            self.predict_function = self._guarded(self.predict_function)
        return self.predict_function

    def _guarded(self, function: Any) -> Any:
        def guarded(*arguments: Any) -> Any:
            with naming_lost_workers(self.program.devices.values()):
                if not self.program.is_staged:
                    return function(*arguments)
                with interruptible(), as_given():
                    return function(*arguments)

        return guarded

    def reset_metrics(self) -> None:
        """As Keras does, but metrics may be on a worker."""
        with naming_lost_workers(self.program.devices.values()):
            super().reset_metrics()
            for variable in self.own_metric_variables:
                variable.assign(tf.zeros_like(variable))

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

    def export(self, filepath: str | Path, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write a SavedModel with a device on every op; plain TensorFlow loads it."""
        export_saved_model(self, filepath)

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

    def _run(self, kind: StepKind, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        arguments = self.program.standardize(kind, (x, y, sample_weight))
        specs = tf.nest.map_structure(spec_of, arguments)
        return self.program.function(kind, specs)(*arguments)

    def _step_with_metrics(self, kind: StepKind, data: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        results = self._run(kind, x, y, sample_weight)
        return results["logs"] if "logs" in results else self._counted(results, x, y, sample_weight)

    def _counted(self, results: Mapping[str, Any], x: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
        """Metrics with a step's results counted."""
        # A failed step must not be counted, not even its rows, which need no result.
        ended = [value for value in tf.nest.flatten(results) if value is not None]
        with tf.device(list(self.program.devices.values())[-1]), tf.control_dependencies(ended):
            rows = tf.shape(tf.nest.flatten(x)[0])[0]
            self._loss_tracker.update_state(results["loss"], sample_weight=rows)
            return self.compute_metrics(x, y, results.get("y_pred"), sample_weight=sample_weight)

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


def _bits(variable: Any) -> bytes:
    return variable.numpy().tobytes()


def spec_of(value: Any) -> Any:
    """The TensorSpec of an argument with any number of rows; None for None."""
    if value is None:
        return None
    sizes = value.shape.as_list()
    return tf.TensorSpec([None, *sizes[1:]] if sizes else [], value.dtype)
