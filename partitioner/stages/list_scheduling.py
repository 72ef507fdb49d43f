"""List scheduling of the actions of a step in microbatches, in whole units of time.

Whenever a device is free it takes, of the actions that may run, a backward before a forward, then the oldest
microbatch; and where there is none, gradients of weights that were left for later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from partitioner.stages.actions import Action, ActionKind

_FORWARD, _BACKWARD, _WEIGHTS = ActionKind


@dataclass(frozen=True, slots=True)
class Units:
    """Units of time that a stage takes for a microbatch.

    Attributes:
        forward: For its forward.
        backward: For its backward, or what another stage waits for of it.
        weights: For gradients of weights; 0 if they are part of the backward.
        hop: From its end until another device can go on.
    """

    forward: int = 1
    backward: int = 1
    weights: int = 0
    hop: int = 0


@dataclass(slots=True)
class Progress:
    """How far a step is.

    Attributes:
        forwards_left: By device, forwards of its stages that have not begun.
        live: By stage, microbatches whose forward has begun and whose last action there has not.
    """

    forwards_left: dict[str, int]
    live: list[int]


def list_schedule(
    stage_devices: Sequence[str],
    num_microbatches: int,
    units: Sequence[Units],
    may_run: Callable[[Action, Progress], bool],
) -> dict[str, list[Action]]:
    """The actions of each device, in order.

    Args:
        stage_devices: Device of each stage; a device may occur several times.
        num_microbatches: At least 1.
        units: Of each stage.
        may_run: Whether a forward or a backward may begin. One of the oldest microbatch always must.

    Returns:
        By device, in the order of their first stages.
    """
    paths = [microbatch_path(len(stage_devices), microbatch) for microbatch in range(num_microbatches)]
    ready = {next(path): 0 for path in paths}
    free = dict.fromkeys(stage_devices, 0)
    orders: dict[str, list[Action]] = {device: [] for device in stage_devices}
    later: dict[str, list[Action]] = {device: [] for device in stage_devices}
    forwards = {device: stage_devices.count(device) * num_microbatches for device in stage_devices}
    progress = Progress(forwards, [0] * len(stage_devices))
    now = 0
    while ready or any(later.values()):
        possible: dict[str, list[Action]] = {device: [] for device, since in free.items() if since <= now}
        for action, since in ready.items():
            if since <= now and stage_devices[action.stage] in possible and may_run(action, progress):
                possible[stage_devices[action.stage]].append(action)
        for device, actions in possible.items():
            if not actions and not later[device]:
                continue
            action = min(actions, key=_turn) if actions else later[device].pop(0)
            orders[device].append(action)
            taken = units[action.stage]
            match action.kind:
                case ActionKind.FORWARD:
                    free[device] = now + taken.forward
                    progress.forwards_left[device] -= 1
                    progress.live[action.stage] += 1
                case ActionKind.BACKWARD:
                    free[device] = now + taken.backward
                    if taken.weights:
                        later[device].append(Action(action.stage, _WEIGHTS, action.microbatch))
                case ActionKind.WEIGHTS:
                    free[device] = now + taken.weights
            if action.kind is not _FORWARD and (action.kind is _WEIGHTS or not taken.weights):
                progress.live[action.stage] -= 1
            if action.kind is not _WEIGHTS:
                del ready[action]
                if (following := next(paths[action.microbatch], None)) is not None:
                    stays = stage_devices[following.stage] == device
                    ready[following] = free[device] + (0 if stays else taken.hop)
        now = min((time for time in chain(free.values(), ready.values()) if time > now), default=now)
    return orders


def _turn(action: Action) -> tuple[bool, int]:
    return action.kind is _FORWARD, action.microbatch


def microbatch_path(num_stages: int, microbatch: int) -> Iterator[Action]:
    """The actions of one microbatch: forward through all stages, then backward."""
    yield from (Action(stage, _FORWARD, microbatch) for stage in range(num_stages))
    yield from (Action(stage, _BACKWARD, microbatch) for stage in reversed(range(num_stages)))
