"""Every buffer that a step in microbatches took, and the stage function that took it, read from TensorFlow's profiler.

Logical CPU devices share one allocator, so its totals do not tell devices apart. But the profiler records every buffer
that `bfc` allocators give out and take back, with the op and the function run that it was for, and the calls of stage
functions by name.

The process must start with `TF_CPU_ALLOCATOR_USE_BFC=1`: the usual allocator of CPUs tells the profiler nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cost_models.memory import allocated_bytes

ENVIRONMENT = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
"""What the measured process must be started with."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")

# Of the step in a graph; what is called in it is a stage function.
_SCOPE = "staged_step/"


@dataclass(slots=True, kw_only=True)
class Allocation:
    """A buffer.

    Attributes:
        op: Name of the op it was made for, in the function that ran it.
        run: Number of the function run; -1 if it was there before the profile began.
        start: In picoseconds.
        end: In picoseconds; the end of the profile if it was not taken back.
        size_bytes: As asked for, rounded up to what an allocator of a CPU gives.
    """

    op: str
    run: int
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a stage function: its name in the step (`0F3`), and when it ran in picoseconds."""

    name: str
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class Profile:
    """What one step did.

    Attributes:
        calls: Of stage functions.
        called_by: The call that each function run is part of, by the run's number.
        allocations: Buffers made while it ran.
        released: Buffers from before that it gave back, with the run that did.
    """

    calls: list[Call] = field(default_factory=list)
    called_by: dict[int, str] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    released: list[Allocation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    thread: int
    start: int
    end: int
    stats: Mapping[str, Any]


def profile(step: Callable[[], Any]) -> Profile:
    """Run a step under the profiler."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            step()
        return _read(_events(next(Path(folder).rglob("*.xplane.pb"))))


def _events(path: Path) -> list[_Event]:
    """Events of the host by start, an enclosing one before what it encloses."""
    # What the profiler writes has no other reader that comes with TensorFlow.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # pyright: ignore[reportMissingImports]

    space: Any = xplane_pb2.XSpace.FromString(path.read_bytes())  # pyright: ignore[reportAttributeAccessIssue]
    found = []
    for plane in space.planes:
        names, keys = plane.event_metadata, plane.stat_metadata
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                start = line.timestamp_ns * 1000 + event.offset_ps
                stats = {keys[s.metadata_id].name: _stat(s, keys) for s in event.stats}
                name = names[event.metadata_id].name
                found.append(_Event(name=name, thread=thread, start=start, end=start + event.duration_ps, stats=stats))
    return sorted(found, key=lambda event: (event.start, -event.end))


def _stat(stat: Any, keys: Mapping[int, Any]) -> Any:
    kind = stat.WhichOneof("value")
    return keys[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)


def _read(events: Sequence[_Event]) -> Profile:
    found = Profile()
    started: dict[str, int] = {}
    live: dict[int, Allocation] = {}
    # Per thread, the call that is being started and the run whose op is at work.
    starting: dict[int, _Event] = {}
    working: dict[int, _Event] = {}
    last = max(event.end for event in events)
    for event in events:
        stats, thread = event.stats, event.thread
        if event.name == "ExecutorState::Process":
            working[thread] = event
        elif event.name == "ExecutorState::ProcessAsync::Start" and stats["kernel_type"] in _CALLS:
            starting[thread] = event
            if _SCOPE in stats["name"]:
                started[stats["name"]] = event.start
        elif event.name == "FunctionRun" and thread in starting and event.end <= starting[thread].end:
            caller = starting[thread].stats
            if _SCOPE in caller["name"]:
                found.called_by[stats["id"]] = _short(caller["name"])
            elif caller["step_id"] in found.called_by:
                found.called_by[stats["id"]] = found.called_by[caller["step_id"]]
        elif event.name == "ExecutorState::ProcessAsync::Done" and stats["name"] in started:
            start = started.pop(stats["name"])
            found.calls.append(Call(name=_short(stats["name"]), start=start, end=event.end))
        elif event.name == "MemoryAllocation":
            size = allocated_bytes(stats["requested_bytes"], "CPU")
            made = Allocation(
                op=stats.get("tf_op", ""), run=stats.get("id", 0), start=event.start, end=last, size_bytes=size
            )
            live[stats["addr"]] = made
            found.allocations.append(made)
        elif event.name == "MemoryDeallocation":
            made = live.pop(stats["addr"], None)
            if made is not None:
                made.end = event.start
            elif thread in working and event.start <= working[thread].end:
                size = allocated_bytes(stats["requested_bytes"], "CPU")
                run = working[thread].stats["id"]
                found.released.append(Allocation(op="", run=run, start=0, end=event.start, size_bytes=size))
    return found


def _short(name: str) -> str:
    """`0F3` of `StatefulPartitionedCall/staged_step/0F3/PartitionedCall`."""
    return name.rpartition("/")[0].rpartition("/")[2]
