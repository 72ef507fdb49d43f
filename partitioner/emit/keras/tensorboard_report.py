"""A Keras callback for TensorBoard: the graph as it is placed, and the plan's figures beside the measured ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from partitioner.emit.graph.graph_def import rename_devices
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.emit.keras.step_report import StepReport
from partitioner.errors import UsageError
from partitioner.ir.devices import short_name

_STEP, _PEAK = "plan/step_seconds", "plan/peak_bytes"


class TensorBoardReport(StepReport):
    """Writes what TensorBoard shows of a placed model: `placed.fit(callbacks=[TensorBoardReport("logs")])`.

    The Graphs page shows the emitted graph; its colours by device are those of the plan. The Scalars page shows, in the
    runs `predicted` and `measured`, seconds of a step and the peak memory of each device, and the idle share of devices
    as predicted. Measured figures are those of `StepReport`, one for each epoch.

    Args:
        log_dir: Where to write.
        num_warmup_steps: As in `StepReport`.
        num_steps: As in `StepReport`.

    Example:
        >>> import keras, numpy, partitioner, pathlib, tempfile
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=8, strategy="layer-split")
        >>> logs = tempfile.mkdtemp()
        >>> board = partitioner.TensorBoardReport(logs)
        >>> history = placed.fit(numpy.ones((64, 8)), numpy.ones((64, 1)), batch_size=8, verbose=0, callbacks=[board])
        >>> sorted(path.name for path in pathlib.Path(logs).iterdir())
        ['measured', 'predicted']
    """

    def __init__(self, log_dir: str | Path, *, num_warmup_steps: int = 5, num_steps: int = 100) -> None:
        super().__init__(verbose=0, num_warmup_steps=num_warmup_steps, num_steps=num_steps)
        self.log_dir = Path(log_dir)
        self._writers: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Write the graph.

        Raises:
            UsageError: The model is not placed, or TensorBoard is not installed.
        """
        super().on_train_begin(logs)
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "TensorBoardReport needs TensorBoard, which is not installed", help="pip install tensorboard"
            )
        self._writers = {
            run: tf.summary.create_file_writer(str(self.log_dir / run)) for run in ("predicted", "measured")
        }
        program = cast(PlacedModel, self.model).program
        kind, specs = program.signatures()[0]
        graph_def = program.function(kind, specs).graph.as_graph_def()
        rename_devices(graph_def, {actual: name for name, actual in program.devices.items()})
        with self._writers["predicted"].as_default(step=0):
            tf.summary.graph(graph_def)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the figures of the epoch."""
        super().on_epoch_end(epoch, logs)
        if (plan := self._plan) is not None:
            with self._writers["predicted"].as_default(step=epoch):
                tf.summary.scalar(_STEP, plan.predicted.step_seconds)
                tf.summary.scalar("plan/idle_share", plan.predicted.bubble_fraction)
                _write_peaks(self.predicted_peak_bytes)
        with self._writers["measured"].as_default(step=epoch):
            if (seconds := self.measured_seconds) is not None:
                tf.summary.scalar(_STEP, seconds)
            _write_peaks(self.measured_peak_bytes)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


def _write_peaks(peaks: Any) -> None:
    for device, size in peaks.items():
        tf.summary.scalar(f"{_PEAK}/{short_name(device).replace(':', '_')}", size)
