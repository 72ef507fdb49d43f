"""A Keras callback that shows the step time of `fit` beside the plan's, and the memory of GPUs."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import keras

from partitioner.emit.cluster.runtime import peak_bytes
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.errors import UsageError
from partitioner.ir.devices import short_name
from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import format_bytes, format_ratio, format_seconds, plural


class StepReport(keras.callbacks.Callback):
    """After each epoch of `placed.fit(callbacks=[StepReport()])`, a line on stderr: step time and memory, as planned.

    A step is measured from the end of the step before to its own end, so that it includes its input and other
    callbacks. The first step of an epoch, which has none before it, is left out, and so are the first steps of `fit`,
    in which TensorFlow traces and optimizes.

    Args:
        verbose: 0 to print nothing; the attributes are there all the same.
        num_warmup_steps: Steps at the beginning of `fit` that are left out.
        num_steps: The median is of so many steps, the last ones.

    Attributes:
        step_seconds: Seconds of the steps that the median is of, oldest first.

    Example:
        >>> import keras, numpy, partitioner
        >>> devices = partitioner.set_up_devices(["CPU:0", "CPU:1"])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mean_squared_error")
        >>> placed = partitioner.auto_place(model, ["CPU:0", "CPU:1"], batch_size=8, strategy="layer-split")
        >>> report = partitioner.StepReport(verbose=0)
        >>> x, y = numpy.ones((128, 8)), numpy.ones((128, 1))
        >>> history = placed.fit(x, y, batch_size=8, verbose=0, callbacks=[report])
        >>> len(report.step_seconds), report.measured_seconds > 0, report.predicted_seconds > 0
        (11, True, True)
    """

    def __init__(self, *, verbose: int = 1, num_warmup_steps: int = 5, num_steps: int = 100) -> None:
        super().__init__()
        for name, value, least in (("num_warmup_steps", num_warmup_steps, 0), ("num_steps", num_steps, 1)):
            if value < least:
                raise UsageError(f"{name} is {value}; expected at least {least}")
        self.verbose = verbose
        self.num_warmup_steps = num_warmup_steps
        self.step_seconds: deque[float] = deque(maxlen=num_steps)
        self._num_seen = 0
        self._last: tuple[int, float] | None = None

    @property
    def measured_seconds(self) -> float | None:
        """Median seconds of the last steps; None before there are any."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def predicted_seconds(self) -> float | None:
        """Seconds of a step by the plan; None for a model that was loaded, which has no plan."""
        return None if self._plan is None else self._plan.predicted.step_seconds

    @property
    def measured_peak_bytes(self) -> Mapping[str, int]:
        """Most bytes that this process has held on each GPU of the plan, by planned device; empty for CPUs."""
        peaks = {name: peak_bytes(ran) for name, ran in self._devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}

    @property
    def predicted_peak_bytes(self) -> Mapping[str, int]:
        """Peak of each used device by the plan; empty for a model that was loaded."""
        return (
            {} if self._plan is None else {name: self._plan.predicted.peak_bytes.get(name, 0) for name in self._devices}
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin anew.

        Raises:
            UsageError: The model is not placed.
        """
        if not isinstance(self.model, PlacedModel):
            raise UsageError(
                "StepReport is for a placed model", help="place(model, plan).fit(callbacks=[StepReport()])"
            )
        self.step_seconds.clear()
        self._num_seen, self._last = 0, None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Let the first step of the epoch have no step before it."""
        self._last = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the seconds since the step before; several steps in one call of TensorFlow count with their mean."""
        now = time.perf_counter()
        if steps := (self.params or {}).get("steps"):
            batch = min(batch, steps - 1)  # the last call of an epoch may hold fewer steps than Keras says
        if self._last is not None:
            last_batch, then = self._last
            num_steps = max(batch - last_batch, 1)
            if self._num_seen >= self.num_warmup_steps:
                self.step_seconds.extend([(now - then) / num_steps] * num_steps)
            self._num_seen += num_steps
        else:
            self._num_seen += 1
        self._last = batch, now

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Print the line."""
        if self.verbose:
            print(f"epoch {epoch + 1}: {'; '.join(self._sentences())}", file=sys.stderr, flush=True)

    def _sentences(self) -> list[str]:
        measured, predicted = self.measured_seconds, self.predicted_seconds
        if measured is None:
            return ["too few steps to measure"]
        sentence = f"step {format_seconds(measured)} (median of {plural(len(self.step_seconds), 'step')})"
        if predicted is not None:
            sentence += f", planned {format_seconds(predicted)}"
        stand_ins = [f"{short_name(ran)} for {short_name(name)}" for name, ran in self._devices.items() if ran != name]
        if stand_ins:
            return [sentence, f"{', '.join(stand_ins)}: says nothing about GPUs"]
        if predicted is not None:
            sentence += f" ({format_ratio(measured, predicted)})"
        return [sentence, *(self._peak(name, measured) for name, measured in self.measured_peak_bytes.items())]

    def _peak(self, device: str, measured: int) -> str:
        planned = self.predicted_peak_bytes.get(device)
        said = "" if planned is None else f", planned {format_bytes(planned)}"
        return f"peak of {short_name(device)} {format_bytes(measured)}{said}"

    @property
    def _plan(self) -> PlanDocument | None:
        return getattr(self.model, "plan", None)

    @property
    def _devices(self) -> Mapping[str, str]:
        """The device that runs in place of each device of the plan."""
        return self.model.program.devices if isinstance(self.model, PlacedModel) else {}
