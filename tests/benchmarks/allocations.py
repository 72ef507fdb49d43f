"""Every buffer that a step took, and the op or stage function that took it, read from TensorFlow's profiler.

Logical CPU devices share one allocator, so its totals do not tell devices apart. But the profiler records every buffer
that `bfc` allocators give out and take back, with the op and the function run that it was for, and the calls of stage
functions by name.

The process must start with `TF_CPU_ALLOCATOR_USE_BFC=1`: the usual allocator of CPUs tells the profiler nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cost_models.memory import allocated_bytes

if TYPE_CHECKING:
    from partitioner.measure.profiler import Event

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
        ended: When each op did, by name in the function that ran it; the last of that name.
    """

    calls: list[Call] = field(default_factory=list)
    called_by: dict[int, str] = field(default_factory=dict)
    allocations: list[Allocation] = field(default_factory=list)
    released: list[Allocation] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)


def profile(step: Callable[[], Any]) -> Profile:
    """Run a step under the profiler."""
    from partitioner.measure.profiler import profiled

    return _read([event for event in profiled(step) if event.plane == "/host:CPU"])


def _read(events: Sequence[Event]) -> Profile:
    found = Profile()
    started: dict[str, int] = {}
    live: dict[int, Allocation] = {}
    # Per thread, the call that is being started and the run whose op is at work.
    starting: dict[int, Event] = {}
    working: dict[int, Event] = {}
    running: dict[int, Event] = {}
    last = max(event.end for event in events)
    for event in events:
        stats, thread = event.stats, event.line
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
            op, run = stats.get("tf_op", ""), stats.get("id", 0)
            if not op and thread in starting and event.start <= starting[thread].end:
                # What XLA compiled asks for itself, for the op that calls it.
                op, run = starting[thread].stats["name"], starting[thread].stats["step_id"]
            made = Allocation(op=op, run=run, start=event.start, end=last, size_bytes=size)
            live[stats["addr"]] = made
            found.allocations.append(made)
        elif event.name == "MemoryDeallocation":
            made = live.pop(stats["addr"], None)
            if made is not None:
                made.end = event.start
            elif thread in working and event.start <= working[thread].end:
                size = allocated_bytes(stats["requested_bytes"], "CPU")
                run, op = working[thread].stats["id"], _op_at(running.get(thread), event.start)
                found.released.append(Allocation(op=op, run=run, start=0, end=event.start, size_bytes=size))
        elif "::" not in event.name and ":" in event.name:
            running[thread] = event
            found.ended[event.name.partition(":")[0]] = event.end
    return found


def _op_at(event: Event | None, moment: int) -> str:
    """The op that an event is of, if it is of that moment too."""
    return event.name.partition(":")[0] if event is not None and moment <= event.end else ""


def _short(name: str) -> str:
    """`0F3` of `StatefulPartitionedCall/staged_step/0F3/PartitionedCall`."""
    return name.rpartition("/")[0].rpartition("/")[2]
