"""The placed model as Keras sees it: compile, fit, evaluate, predict and save are Keras', the steps are placed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.emit.cluster.lost_worker import naming_lost_workers
from partitioner.emit.graph.rewriting import as_allowed
from partitioner.emit.keras.export import export_saved_model
from partitioner.emit.keras.interrupt import interruptible
from partitioner.emit.keras.objective import saved_objective, share_counting, share_objective
from partitioner.emit.keras.program import Program, any_rows
from partitioner.emit.keras.stand_in import StandIn
from partitioner.errors import UsageError
from partitioner.ir.plan import JitCompile, PlanDocument
from partitioner.ir.step import StepKind


@keras.saving.register_keras_serializable(package="partitioner")
class PlacedModel(StandIn):
    """A Keras model whose every step runs on its planned devices.

    It shares its variables with the unplaced model; they are now on their planned devices, optimizer slots beside their
    variables. Keras does not compile its steps, as XLA compiles for one device: what each device runs is compiled.

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
        super().__init__(model=model, name=name, plan=plan, variables=variables, resources=resources)
        self.program = program
        self.own_steps = tuple(own_steps)
        self.own_metric_variables: Sequence[Any] = ()
        self.asked_to_compile: JitCompile | None = None
        self._has_warned = False
        self.supports_jit = False
        self.optimizer = None  # Keras sets it in compile(), which an inference plan does without
        self.built = True

    def differing_variables(self, tolerance: float = 0.0) -> list[str]:
        """Names of the variables whose bits differ between replicas; between two steps there are none on CPUs.

        GPUs add up the rows of an embedding's gradient in no fixed order: there its copies differ in their last digits.

        Args:
            tolerance: Relative difference (of norms) up to which copies do not count as different.
        """
        return [name for name, copies in self.program.copies().items() if _differ(copies, tolerance)]

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
        self.program.refuse_moved()
        return self._run(StepKind.PREDICT, inputs)["y_pred"]

    @property
    def metrics(self) -> list[Any]:
        """The metrics that `fit` resets and reports: those of the model, where its own step updates them."""
        return self.model.metrics if self.model is not None and self.own_steps else super().metrics

    def compile(self, *arguments: Any, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `keras.Model.compile`, or as `compile` of a model with its own `train_step`.

        With `jit_compile=True` or `False` XLA compiles what every device runs, or nothing, whatever the plan says.

        Raises:
            UsageError: Another loss or optimizer, or `jit_compile=True`, for a model that was loaded from a SavedModel,
                whose training step already holds its own.
        """
        asked = options.get("jit_compile", "auto")
        if self.model is None and asked is True:
            raise UsageError("jit_compile=True: a SavedModel is compiled as it was written")
        self.asked_to_compile = None if asked == "auto" else JitCompile.of(asked)
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

    @tf.autograph.experimental.do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """One placed training step: forward, loss, gradients and update."""
        return self._step_with_metrics(StepKind.TRAIN, data)

    @tf.autograph.experimental.do_not_convert
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
            self.program.refuse_moved()
            with naming_lost_workers(self.program.devices.values()):
                if not self.program.is_staged:
                    with self._rewriting():
                        return function(*arguments)
                with interruptible(), self._rewriting():
                    return function(*arguments)

        return guarded

    def reset_metrics(self) -> None:
        """As Keras does, but metrics may be on a worker."""
        with naming_lost_workers(self.program.devices.values()):
            super().reset_metrics()
            for variable in self.own_metric_variables:
                variable.assign(tf.zeros_like(variable))

    def export(self, filepath: str | Path, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write a SavedModel with a device on every op; plain TensorFlow loads it."""
        export_saved_model(self, filepath)

    def _run(self, kind: StepKind, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        arguments = self.program.standardize(kind, (x, y, sample_weight))
        specs = tf.nest.map_structure(spec_of, arguments)
        # Keras traces a function for each number of rows, or for any; calls from Python come with one after the other.
        function = self.program.function(kind, any_rows(specs) if tf.executing_eagerly() else specs)
        with self._rewriting():
            return function(*arguments)

    def _rewriting(self) -> Any:
        return as_allowed(is_staged=self.program.is_staged)

    def _step_with_metrics(self, kind: StepKind, data: Any) -> dict[str, Any]:
        x, y, sample_weight = tf.nest.map_structure(_tensor, keras.utils.unpack_x_y_sample_weight(data))
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


def _differ(copies: Sequence[Any], tolerance: float) -> bool:
    """Whether a variable's copies have other bits, and are farther apart than the tolerance allows."""
    first, *others = [copy.numpy() for copy in copies]
    apart = [other for other in others if other.tobytes() != first.tobytes()]
    if not tolerance or not apart:
        return bool(apart)
    allowed = tolerance * np.linalg.norm(first.astype(np.float64))
    return not all(np.linalg.norm(other.astype(np.float64) - first) <= allowed for other in apart)


def _tensor(value: Any) -> Any:
    """An argument as `fit` gives it to a step: a tensor, and where it is floating of the type that Keras has."""
    if value is None or tf.is_tensor(value):
        return value
    array = np.asarray(value)
    return tf.convert_to_tensor(array, keras.config.floatx() if array.dtype.kind == "f" else None)


def spec_of(value: Any) -> Any:
    """The TensorSpec of an argument; None for None."""
    return None if value is None else tf.TensorSpec(value.shape, value.dtype)
