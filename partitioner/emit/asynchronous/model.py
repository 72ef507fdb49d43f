"""A placed model whose replicas train without waiting for each other, as Keras sees it.

`fit` cuts every batch into a part for each replica and gives each part to the next free replica; each part makes an
update of its own. Reading weights or the metrics of an epoch waits until all parts are applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from partitioner.emit.asynchronous.program import AsyncProgram, UpdateCounts
from partitioner.emit.keras.placed_model import PlacedModel, spec_of
from partitioner.emit.keras.program import PlacedProgram, any_rows
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import StepKind

_Data = tuple[Any, Any, Any]


@keras.saving.register_keras_serializable(package="partitioner")
class AsyncPlacedModel(PlacedModel):
    """A placed model that several replicas train; each applies its update as soon as it is computed.

    Variables and optimizer slots exist once, on the first replica's devices; each replica computes with a copy of the
    variables that its forward and backward pass read. Evaluation, prediction, `train_step` and a SavedModel run on the
    first replica's devices alone, on the shared variables.

    A batch that fails makes `fit` raise, and so does Ctrl-C. Batches that are not yet applied are then dropped; every
    update is applied as a whole or not at all.

    Args:
        program: The placed functions of the first replica.
        asynchronous: The training step of all replicas.
        model: The Keras model they were traced from.
        name: Name of the model.
        plan: The plan it runs.
    """

    def __init__(
        self,
        program: PlacedProgram,
        asynchronous: AsyncProgram,
        *,
        model: keras.Model,
        name: str,
        plan: PlanDocument | None = None,
    ) -> None:
        super().__init__(program, model=model, name=name, plan=plan)
        self.asynchronous = asynchronous
        self._waits = False
        self._count: Any = None

    @property
    def update_counts(self) -> UpdateCounts:
        """The number of updates since the model was compiled, and their staleness."""
        return self.asynchronous.counts

    def join(self) -> None:
        """Wait until every batch of `fit` is applied.

        Raises:
            Exception: The exception of a replica's step.
        """
        self._counted_all(self.asynchronous.join())

    def compile(self, *arguments: Any, **options: Any) -> None:
        """As `PlacedModel.compile`."""
        self.asynchronous.stop()
        super().compile(*arguments, **options)
        self.asynchronous.forget()
        self._count = tf.function(self._counted, autograph=False, reduce_retracing=True)

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """As `keras.Model.fit`, with as many updates per batch as there are replicas."""
        with self._stopped_by_errors():
            return super().fit(*arguments, **options)

    def train_on_batch(self, *arguments: Any, **options: Any) -> Any:
        """As `keras.Model.train_on_batch`; returns when all parts of the batch are applied."""
        self._waits = True
        try:
            with self._stopped_by_errors():
                return super().train_on_batch(*arguments, **options)
        finally:
            self._waits = False

    def make_train_function(self, force: bool = False) -> Any:
        """A function that gives the next batches to the replicas, and returns the metrics of the applied batches."""
        if force or self.train_function is None:
            self.train_function = self._train
        return self.train_function

    def get_metrics_result(self) -> dict[str, Any]:
        """The metrics of all submitted batches."""
        if tf.executing_eagerly():
            self.join()
        return super().get_metrics_result()

    def reset_metrics(self) -> None:
        """As Keras does, after all submitted batches are counted."""
        self.join()
        super().reset_metrics()

    def get_weights(self) -> list[Any]:
        """As Keras does, after all submitted batches are applied."""
        self.join()
        return super().get_weights()

    def set_weights(self, weights: Any) -> None:
        """As Keras does, after all submitted batches are applied."""
        self.join()
        super().set_weights(weights)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **options: Any) -> None:
        """As `PlacedModel.save`, after all submitted batches are applied."""
        self.join()
        super().save(filepath, overwrite, zipped, **options)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: Any = None) -> None:
        """As `PlacedModel.save_weights`, after all submitted batches are applied."""
        self.join()
        super().save_weights(filepath, overwrite, max_shard_size)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **options: Any) -> None:
        """As `PlacedModel.load_weights`, after all submitted batches are applied."""
        self.join()
        super().load_weights(filepath, skip_mismatch, **options)

    def export(self, filepath: str | Path, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `PlacedModel.export`, of the first replica: the loaded model trains on its devices alone."""
        self.join()
        super().export(filepath, **options)

    def _run(self, kind: StepKind, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        if tf.executing_eagerly():
            self.join()
        return super()._run(kind, x, y, sample_weight)

    def _guarded(self, function: Any) -> Any:
        guarded = super()._guarded(function)

        def joined(*arguments: Any) -> Any:
            self.join()
            return guarded(*arguments)

        return joined

    def _train(self, iterator: Iterator[Any]) -> dict[str, Any]:
        self.program.refuse_moved()
        for number in range(self.steps_per_execution):
            data = next(iterator, None) if number else next(iterator)
            if data is not None:
                self._submit(keras.utils.unpack_x_y_sample_weight(data))
        logs = self._counted_all(self.asynchronous.join() if self._waits else self.asynchronous.finished())
        return super().get_metrics_result() if logs is None else logs

    def _submit(self, data: _Data) -> None:
        for part in _parts(data, self.asynchronous.num_replicas):
            arguments = self.program.standardize(StepKind.TRAIN, part)
            self.asynchronous.submit(part, arguments, any_rows(tf.nest.map_structure(spec_of, arguments)))

    def _counted_all(self, finished: Iterable[tuple[_Data, dict[str, Any]]]) -> dict[str, Any] | None:
        """Metrics with these batches counted; None if there are none."""
        logs = None
        for part, computed in finished:
            logs = self._count({name: computed.get(name) for name in ("loss", "y_pred")}, *part)
        return logs

    @contextmanager
    def _stopped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.asynchronous.stop()
            raise


def _parts(data: _Data, count: int) -> Iterable[_Data]:
    """The rows of a batch in `count` parts of nearly equal size, without empty parts."""
    data = tf.nest.map_structure(lambda value: None if value is None else tf.convert_to_tensor(value), data)
    arguments = [value for value in tf.nest.flatten(data) if value is not None]
    rows = next(value.shape[0] for value in arguments if value.shape.rank)
    borders = [index * (rows // count) + min(index, rows % count) for index in range(count + 1)]
    for start, end in pairwise(borders):
        if end > start:
            yield tf.nest.map_structure(partial(_rows, start, end), data)


def _rows(start: int, end: int, value: Any) -> Any:
    return value[start:end] if value is not None and value.shape.rank else value
