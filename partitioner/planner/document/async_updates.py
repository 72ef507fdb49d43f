"""Asynchronous updates in a plan: whether they can be had, how stale they may be, and what they take of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from partitioner.errors import InfeasibleError, UsageError
from partitioner.ir.devices import DeviceName, short_name
from partitioner.ir.plan import DeviceMemory, Strategy, Updates
from partitioner.spelling import argument, arguments

# So a replica that takes four times as long as the others lets them do all they can meanwhile.
_STALENESS_PER_REPLICA = 4
_HOST = DeviceName(type="CPU", index=0)


def staleness_bound(
    updates: Updates,
    max_staleness: int | None,
    *,
    strategy: Strategy,
    replicas: int | str | Sequence[int],
    num_replicas: int,
    devices: Sequence[str],
    training: bool,
) -> int:
    """The largest staleness of an update: 0 for synchronous ones, by default four per replica for others.

    Args:
        updates: Whether replicas wait for each other.
        max_staleness: What was asked for.
        strategy: Likewise.
        replicas: Likewise.
        num_replicas: How many there are, if it is not left open.
        devices: Canonical names of the first replica's devices.
        training: Whether the plan trains.

    Raises:
        UsageError: It does not go with the other arguments, or asynchronous updates cannot be had.
    """
    if updates is Updates.SYNC:
        if max_staleness is not None:
            raise UsageError("max_staleness: synchronous updates are never stale", help=argument("updates", "async"))
        return 0
    if max_staleness is not None and max_staleness < 0:
        raise UsageError(f"max_staleness is {max_staleness}, expected at least 0")
    if not training:
        raise UsageError("asynchronous updates are of training, and the plan is of inference")
    if replicas == "auto" and strategy is not Strategy.MIRRORED:
        raise UsageError(
            "asynchronous updates by how many replicas?",
            help=f"{argument('strategy', 'mirrored')}, or {arguments(strategy='mixed', replicas=2)}",
        )
    if not isinstance(replicas, (int, str)) and len(set(replicas)) > 1:
        raise UsageError(
            "asynchronous replicas update by themselves, so that they cannot share devices",
            help=f"{argument('replicas', num_replicas)}, or {argument('updates', 'sync')}",
        )
    if remote := [short_name(name) for name in devices if not DeviceName.parse(name).is_local]:
        raise UsageError(
            f"the first of asynchronous replicas is where all parameters are, and {', '.join(remote)} is elsewhere",
            help=f"name devices of this process first, or {argument('updates', 'sync')}",
        )
    return _STALENESS_PER_REPLICA * num_replicas if max_staleness is None else max_staleness


def with_async_updates(fields: dict[str, Any], max_staleness: int) -> dict[str, Any]:
    """The fields of a plan of synchronous replicas, for asynchronous ones.

    Its seconds stay those of a synchronous step.

    Args:
        fields: As `replicated` gives them.
        max_staleness: See `staleness_bound`.

    Raises:
        InfeasibleError: The shared variables do not fit beside the first replica's own.
    """
    first = {stage.device for stage in fields["stages"] if stage.replica == 0}
    memory = [_sharing(one) if one.device in first else _without_slots(one) for one in fields["memory"]]
    remote = {stage.replica for stage in fields["stages"] if not DeviceName.parse(stage.device).is_local}
    shared = [one for one in fields["memory"] if one.device in first]
    memory = tuple(
        _receiving(one, shared, len(remote)) if DeviceName.parse(one.device) == _HOST else one for one in memory
    )
    if crowded := [one for one in memory if one.headroom_bytes < 0]:
        raise InfeasibleError(
            "the variables that asynchronous replicas share do not fit beside those of the first replica",
            notes=[f"{short_name(one.device)}: {-one.headroom_bytes / 2**30:.2f} GiB too much" for one in crowded],
            help=argument("updates", "sync"),
        )
    added = {new.device: new.peak_bytes - old.peak_bytes for new, old in zip(memory, fields["memory"], strict=True)}
    predicted = fields["predicted"]
    peaks = {name: size + added.get(name, 0) for name, size in predicted.peak_bytes.items()}
    note = (
        f"updates are asynchronous: at most {max_staleness} others are applied between reading parameters and updating "
        "them; seconds are those of synchronous steps"
    )
    return fields | {
        "updates": Updates.ASYNC,
        "max_staleness": max_staleness,
        "stages": tuple(
            replace(stage, peak_bytes=stage.peak_bytes + added.get(stage.device, 0)) for stage in fields["stages"]
        ),
        "predicted": replace(predicted, peak_bytes=peaks),
        "memory": memory,
        "notes": (*fields["notes"], note),
    }


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
