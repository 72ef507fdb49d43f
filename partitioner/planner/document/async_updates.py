"""Asynchronous updates in a plan: what they take of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partitioner.errors import InfeasibleError
from partitioner.ir.devices import DeviceName, short_name
from partitioner.ir.plan import DeviceMemory, PlanDocument, Updates
from partitioner.spelling import argument

_HOST = DeviceName(type="CPU", index=0)


def with_async_updates(plan: PlanDocument, max_staleness: int) -> PlanDocument:
    """A plan of synchronous replicas, for asynchronous ones; its seconds stay those of a synchronous step.

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
        _receiving(one, shared, len(remote)) if DeviceName.parse(one.device) == _HOST else one
        for one in (_sharing(one) if one.device in first else _without_slots(one) for one in plan.memory)
    )
    if contended := [one for one in memory if one.headroom_bytes < 0]:
        raise InfeasibleError(
            "the variables that asynchronous replicas share do not fit beside those of the first replica",
            notes=[f"{short_name(one.device)}: {-one.headroom_bytes / 2**30:.2f} GiB too much" for one in contended],
            help=argument("updates", "sync"),
        )
    added = {new.device: new.peak_bytes - old.peak_bytes for new, old in zip(memory, plan.memory, strict=True)}
    peaks = {name: size + added.get(name, 0) for name, size in plan.predicted.peak_bytes.items()}
    note = (
        f"updates are asynchronous: at most {max_staleness} others are applied between reading parameters and updating "
        "them; seconds are those of synchronous steps"
    )
    return replace(
        plan,
        updates=Updates.ASYNC,
        max_staleness=max_staleness,
        stages=tuple(replace(one, peak_bytes=one.peak_bytes + added.get(one.device, 0)) for one in plan.stages),
        predicted=replace(plan.predicted, peak_bytes=peaks),
        memory=memory,
        notes=(*plan.notes, note),
    )


def _sharing(memory: DeviceMemory) -> DeviceMemory:
    """With what all share beside the replica's own, and the gradients of another replica that has ended."""
    own = memory.parameter_bytes + memory.state_bytes
    return replace(
        memory,
        parameter_bytes=2 * memory.parameter_bytes,
        state_bytes=2 * memory.state_bytes,
        gradient_bytes=memory.gradient_bytes + memory.parameter_bytes,
        headroom_bytes=memory.headroom_bytes - own - memory.parameter_bytes,
    )


def _receiving(memory: DeviceMemory, shared: Sequence[DeviceMemory], count: int) -> DeviceMemory:
    """With what the replicas of other processes have here: parameters on their way there, or gradients from there."""
    size = count * sum(one.parameter_bytes + one.state_bytes for one in shared)
    return replace(memory, gradient_bytes=memory.gradient_bytes + size, headroom_bytes=memory.headroom_bytes - size)


def _without_slots(memory: DeviceMemory) -> DeviceMemory:
    return replace(memory, slot_bytes=0, headroom_bytes=memory.headroom_bytes + memory.slot_bytes)
