"""Asynchronous updates in a plan: the memory that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partitioner.errors import InfeasibleError
from partitioner.ir.devices import DeviceName, short_name
from partitioner.ir.plan import DeviceMemory, PlanDocument, Updates
from partitioner.spelling import argument

_HOST = DeviceName(type="CPU", index=0)


def with_async_updates(plan: PlanDocument, max_staleness: int) -> PlanDocument:
    """A plan of synchronous replicas turned into a plan of asynchronous replicas; its seconds stay the same.

    Args:
        plan: As `replicated` gives it.
        max_staleness: The largest staleness of an update.

    Raises:
        InfeasibleError: The shared variables do not fit beside the first replica's own.
    """
    first = {stage.device for stage in plan.stages if stage.replica == 0}
    remote = {stage.replica for stage in plan.stages if not DeviceName.parse(stage.device).is_local}
    shared = [memory for memory in plan.memory if memory.device in first]
    memory = tuple(
        _receiving(use, shared, len(remote)) if DeviceName.parse(use.device) == _HOST else use
        for use in (_sharing(own) if own.device in first else _without_slots(own) for own in plan.memory)
    )
    if overfull := [use for use in memory if use.headroom_bytes < 0]:
        raise InfeasibleError(
            "the variables that asynchronous replicas share do not fit beside those of the first replica",
            notes=[f"{short_name(use.device)}: {-use.headroom_bytes / 2**30:.2f} GiB too much" for use in overfull],
            help=argument("updates", "sync"),
        )
    added = {new.device: new.peak_bytes - old.peak_bytes for new, old in zip(memory, plan.memory, strict=True)}
    memory = tuple(_raised(use, added[use.device]) for use in memory)
    peaks = {name: size + added.get(name, 0) for name, size in plan.predicted.peak_bytes.items()}
    note = (
        f"updates are asynchronous: at most {max_staleness} others are applied between reading parameters and updating "
        "them; seconds are those of synchronous steps"
    )
    return replace(
        plan,
        updates=Updates.ASYNC,
        max_staleness=max_staleness,
        stages=tuple(replace(stage, peak_bytes=stage.peak_bytes + added.get(stage.device, 0)) for stage in plan.stages),
        predicted=replace(plan.predicted, peak_bytes=peaks),
        memory=memory,
        notes=(*plan.notes, note),
    )


def _sharing(memory: DeviceMemory) -> DeviceMemory:
    """A device with the shared variables beside the replica's own, and the gradients of another replica."""
    own = memory.parameter_bytes + memory.state_bytes
    return replace(
        memory,
        parameter_bytes=2 * memory.parameter_bytes,
        state_bytes=2 * memory.state_bytes,
        gradient_bytes=memory.gradient_bytes + memory.parameter_bytes,
        headroom_bytes=memory.headroom_bytes - own - memory.parameter_bytes,
    )


def _receiving(memory: DeviceMemory, shared: Sequence[DeviceMemory], count: int) -> DeviceMemory:
    """The host with buffers for replicas of other processes: parameters to send, or gradients received."""
    size = count * sum(use.parameter_bytes + use.state_bytes for use in shared)
    return replace(memory, gradient_bytes=memory.gradient_bytes + size, headroom_bytes=memory.headroom_bytes - size)


def _raised(memory: DeviceMemory, size: int) -> DeviceMemory:
    """What is held besides the step is held all through it."""
    return replace(memory, over_time=tuple(max(held + size, 0) for held in memory.over_time))


def _without_slots(memory: DeviceMemory) -> DeviceMemory:
    return replace(memory, slot_bytes=0, headroom_bytes=memory.headroom_bytes + memory.slot_bytes)
