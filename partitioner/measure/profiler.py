"""Run a function under TensorFlow's profiler and read the events that it wrote."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

_SETTLING_SECONDS = 5e-3
"""After a run, until threads have recorded what they ran last: a step may end before the event of its last op does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the profiler.

    Attributes:
        plane: Where it ran, `/host:CPU` or `/device:GPU:0`.
        line: Number of the thread or stream on that plane.
        name: Its name; for an op, `NAME:TYPE`.
        start: Start in picoseconds, on the profiler's clock.
        end: End in picoseconds.
        stats: Further statistics by name.
    """

    plane: str
    line: int
    name: str
    start: int
    end: int
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end - self.start) / 1e12


def profiled(run: Callable[[], object]) -> list[Event]:
    """Call `run` under the profiler; returns the events by start, an enclosing event before the events in it."""
    with tempfile.TemporaryDirectory() as folder:
        # Without options it traces ops and no Python, as is wanted; with options, TensorFlow 2.21 logs warnings.
        with tf.profiler.experimental.Profile(folder):
            run()
            time.sleep(_SETTLING_SECONDS)
        events = list(events_of(next(Path(folder).rglob("*.xplane.pb"))))
    return sorted(events, key=lambda event: (event.start, -event.end))


def events_of(path: Path) -> Iterator[Event]:
    """The events in a file of the profiler (an XSpace)."""
    # TensorFlow has no other reader for the profiler's files.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # pyright: ignore[reportMissingImports]

    space: Any = xplane_pb2.XSpace.FromString(path.read_bytes())  # pyright: ignore[reportAttributeAccessIssue]
    for plane in space.planes:
        names, keys = plane.event_metadata, plane.stat_metadata
        for number, line in enumerate(plane.lines):
            for event in line.events:
                start = line.timestamp_ns * 1000 + event.offset_ps
                yield Event(
                    plane=plane.name,
                    line=number,
                    name=names[event.metadata_id].name,
                    start=start,
                    end=start + event.duration_ps,
                    stats={keys[stat.metadata_id].name: _value(stat, keys) for stat in event.stats},
                )


def _value(stat: Any, keys: Mapping[int, Any]) -> Any:
    kind = stat.WhichOneof("value")
    return keys[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)
