"""Schedules of a step in microbatches: the order in which each device runs its stages' forwards and backwards.

Each table has a row per device and a column per unit of time in which one forward or one backward fits. Three stages
on devices a, b, c and four microbatches (of `zb-h2` five); `0F3` is stage 0, forward, microbatch 3.

`sequential`: one microbatch at a time (shown for the first two).

    a | 0F0  .   .   .   .  0B0 0F1  .   .   .   .  0B1
    b |  .  1F0  .   .  1B0  .   .  1F1  .   .  1B1  .
    c |  .   .  2F0 2B0  .   .   .   .  2F1 2B1  .   .

`gpipe`: all forwards, then all backwards, both in the order of microbatches (Huang et al. 2019, "GPipe: Efficient
training of giant neural networks using pipeline parallelism").

    a | 0F0 0F1 0F2 0F3  .   .   .   .  0B0 0B1 0B2 0B3
    b |  .  1F0 1F1 1F2 1F3  .   .  1B0 1B1 1B2 1B3  .
    c |  .   .  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3  .   .

`1f1b`: takes as long as gpipe, but stage s of S never holds more than S - s microbatches (PipeDream-Flush, Narayanan
et al. 2021, "Memory-efficient pipeline-parallel DNN training").

    a | 0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
    b |  .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
    c |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .

`zb-h1`: as 1f1b, but a backward is in two parts: what another stage waits for (B), and the gradients of weights (W),
which stage s computes s microbatches later (Qi et al. 2023, "Zero bubble pipeline parallelism", section 2.1). No stage
holds more than S microbatches whose W has not run. For the first stage nobody waits: it runs both parts as one.

    a | 0F0 0F1 0F2  .   .  0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3
    b |  .  1F0 1F1  .  1B0 1F2 1B1 1W0 1F3 1B2 1W1 1B3 1W2 1W3
    c |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2W0 2F3 2B3 2W1 2W2 2W3

`zb-h2`: as zb-h1, but where it would wait for its first backward, a stage has taken more forwards, and gradients of
weights wait for twice as many microbatches (the same, section 2.2). So a device that has begun does not wait, where
forward, backward and gradients of weights take equally long; and stages hold up to 2S - 1 microbatches.

    a | 0F0 0F1 0F2 0F3 0F4 0B0 0W0 0B1 0W1 0B2 0W2 0B3 0W3 0B4 0W4  .   .
    b |  .  1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1W0 1B3 1W1 1B4 1W2 1W3 1W4  .
    c |  .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4 2W0 2W1 2W2 2W3 2W4

`zb-v`: each device but the last has two stages, dealt there and back, so that the last one, with one of twice the work,
begins after half of the time (Qi et al. 2023, section 6; there it has two as well). Gradients of weights are computed
where a device would wait. It shows three stages on two devices and two microbatches.

    a | 0F0 0F1 2F0 2B0 2F1 2B1 2W0 2W1 0B0 0W0 0B1 0W1
    b |  .  1F0 1F1  .  1B0  .  1B1 1W0 1W1  .   .   .

`interleaved`: each device holds several stages, dealt round robin, and works for groups of as many microbatches as
there are devices (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM", section 2.2). It shows four stages on two devices, as four microbatches are no multiple of three devices.

    a | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3
    b |  .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  .
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import TypeVar

from partitioner.errors import UsageError
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.list_scheduling import Progress, Units, list_schedule, microbatch_path

_FORWARD, _BACKWARD, _WEIGHTS = ActionKind
D = TypeVar("D")


class ScheduleKind(StrEnum):
    """The schedules, by the names people type."""

    SEQUENTIAL = "sequential"
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"
    INTERLEAVED = "interleaved"

    @property
    def parts_backward(self) -> bool:
        """Whether gradients of weights are computed apart from what other stages wait for."""
        return self in (ScheduleKind.ZB_H1, ScheduleKind.ZB_H2, ScheduleKind.ZB_V)

    def stages_on(self, devices: Sequence[D], *, rounds: int = 2, training: bool = True) -> tuple[D, ...]:
        """The device of each stage, where these devices have their first stages in this order.

        Args:
            devices: The devices.
            rounds: Of `interleaved`, how many stages each device has.
            training: Whether there are backwards.
        """
        match self:
            case ScheduleKind.INTERLEAVED:
                return tuple(devices) * rounds
            case ScheduleKind.ZB_V if training:
                return (*devices, *devices[-2::-1])
            case _:
                return tuple(devices)


def device_orders(
    kind: ScheduleKind, stage_devices: Sequence[str], num_microbatches: int, *, training: bool = True
) -> dict[str, tuple[Action, ...]]:
    """The actions of each device, in the order in which it runs them.

    Every stage takes its microbatches in order, forward and backward. `gpipe` and `1f1b` are list schedules in unit
    time, so that a device may hold several stages. In `gpipe` a device starts its backwards after all its forwards; in
    `1f1b` a forward of stage s must leave at most min(microbatches, S - s) microbatches there that wait for their
    backward. With one stage per device this is the order of the paper: S - 1 - s forwards, then one forward and one
    backward in turn, then the remaining backwards.

    Args:
        kind: The schedule.
        stage_devices: Device of each stage; a device may occur several times.
        num_microbatches: At least 1.
        training: False leaves only forwards: `1f1b` and those without bubbles are then `gpipe`, and nothing makes
            `sequential` wait between microbatches.

    Returns:
        By device, in the order of their first stages.

    Raises:
        UsageError: There is no stage or no microbatch; for `interleaved`, the stages are not dealt round robin or the
            microbatches are no multiple of the devices; for `zb-v`, the stages are not dealt there and back.
    """
    if not stage_devices or num_microbatches < 1:
        raise UsageError(
            f"a schedule needs a stage and a microbatch, not {len(stage_devices)} and {num_microbatches}",
            help="take 1 microbatch to run the batch as a whole",
        )
    match kind:
        case ScheduleKind.SEQUENTIAL:
            orders = _sequential(stage_devices, num_microbatches)
        case ScheduleKind.INTERLEAVED:
            orders = _interleaved(stage_devices, num_microbatches)
        case ScheduleKind.ONE_F_ONE_B if training:
            orders = _one_f_one_b(stage_devices, num_microbatches)
        case ScheduleKind.ZB_H1 if training:
            orders = _zero_bubble(stage_devices, num_microbatches, ahead=1)
        case ScheduleKind.ZB_H2 if training:
            orders = _zero_bubble(stage_devices, num_microbatches, ahead=2)
        case ScheduleKind.ZB_V if training:
            orders = _in_a_v(stage_devices, num_microbatches)
        case _:
            orders = _gpipe(stage_devices, num_microbatches)
    return {
        device: tuple(action for action in actions if training or action.kind is _FORWARD)
        for device, actions in orders.items()
    }


def merged_order(orders: Mapping[str, Sequence[Action]], num_stages: int) -> tuple[Action, ...]:
    """One order of all actions that respects every device's order and what actions need of each other.

    A forward needs the forward of the stage before; a backward needs its stage's forward and the backward of the stage
    behind; gradients of weights need their stage's backward. Actions that could run in the same unit of time are next
    to each other, sorted.

    Raises:
        ValueError: Actions wait for each other in a cycle, or for an action that no device runs; it names them.
    """
    turns: dict[Action, int] = {}
    left = {device: deque(actions) for device, actions in orders.items()}
    waiting: dict[Action, list[str]] = {}
    going_on = [*orders]
    last = dict.fromkeys(orders, 0)
    while going_on:
        device = going_on.pop()
        while left[device]:
            action = left[device][0]
            needed = [*_needed(action, num_stages)]
            missing = next((other for other in needed if other not in turns), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            last[device] = turns[action] = 1 + max([last[device], *map(turns.__getitem__, needed)])
            left[device].popleft()
            going_on += waiting.pop(action, [])
    if any(left.values()):
        raise ValueError(_why_stuck(orders, num_stages))
    return tuple(sorted(turns, key=lambda one: (turns[one], one.stage, one.kind, one.microbatch)))


def _why_stuck(orders: Mapping[str, Sequence[Action]], num_stages: int) -> str:
    """Which actions wait for each other, or for an action that no device runs."""
    everything = {action for actions in orders.values() for action in actions}
    sorter: TopologicalSorter[Action] = TopologicalSorter()
    for device, actions in orders.items():
        for before, action in zip((None, *actions), actions, strict=False):
            needed = list(_needed(action, num_stages))
            missing = [other for other in needed if other not in everything]
            if missing:
                return f"{action} on {device} waits for {missing[0]}, which no device runs"
            sorter.add(action, *needed, *([before] if before else []))
    try:
        sorter.prepare()
    except CycleError as error:
        return f"actions wait for each other: {' waits for '.join(map(str, reversed(error.args[1])))}"
    raise AssertionError("the actions can run")


def max_live(order: Sequence[Action]) -> dict[int, int]:
    """By stage, the most microbatches at a time whose forward has started and whose backward has not ended.

    Without backwards, as in inference, no microbatch ends.
    """
    live: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in order:
        if action.kind is _WEIGHTS:
            continue
        live[action.stage] = live.get(action.stage, 0) + (1 if action.kind is _FORWARD else -1)
        most[action.stage] = max(most.get(action.stage, 0), live[action.stage])
    return most


def max_waiting(order: Sequence[Action]) -> dict[int, int]:
    """By stage, the most microbatches whose gradients of weights wait while a forward or a backward runs."""
    waiting: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in order:
        if action.kind is not _WEIGHTS:
            most[action.stage] = max(most.get(action.stage, 0), waiting.get(action.stage, 0))
        if action.kind is not _FORWARD:
            waiting[action.stage] = waiting.get(action.stage, 0) + (1 if action.kind is _BACKWARD else -1)
    return most


def _needed(action: Action, num_stages: int) -> Iterator[Action]:
    stage, microbatch = action.stage, action.microbatch
    if action.kind is _FORWARD:
        if stage > 0:
            yield Action(stage - 1, _FORWARD, microbatch)
        return
    if action.kind is _WEIGHTS:
        yield Action(stage, _BACKWARD, microbatch)
        return
    yield Action(stage, _FORWARD, microbatch)
    if stage + 1 < num_stages:
        yield Action(stage + 1, _BACKWARD, microbatch)


def _sequential(stage_devices: Sequence[str], num_microbatches: int) -> dict[str, list[Action]]:
    orders: dict[str, list[Action]] = {device: [] for device in stage_devices}
    for microbatch in range(num_microbatches):
        for action in microbatch_path(len(stage_devices), microbatch):
            orders[stage_devices[action.stage]].append(action)
    return orders


def _gpipe(stage_devices: Sequence[str], num_microbatches: int) -> dict[str, list[Action]]:
    def may_run(action: Action, progress: Progress) -> bool:
        return action.kind is _FORWARD or not progress.forwards_left[stage_devices[action.stage]]

    return list_schedule(stage_devices, num_microbatches, [Units()] * len(stage_devices), may_run)


def _one_f_one_b(stage_devices: Sequence[str], num_microbatches: int, *, ahead: int = 1) -> dict[str, list[Action]]:
    """A stage is up to `ahead` microbatches ahead of the one behind; two fill the time until its first backward."""
    num_stages = len(stage_devices)

    def may_run(action: Action, progress: Progress) -> bool:
        most = ahead * (num_stages - action.stage - 1) + 1
        return action.kind is _BACKWARD or progress.live[action.stage] < most

    return list_schedule(stage_devices, num_microbatches, [Units()] * num_stages, may_run)


def _in_a_v(stage_devices: Sequence[str], num_microbatches: int) -> dict[str, list[Action]]:
    """A device may hold four halves of its work in flight for each device, of which a last one is for its later stage.

    Units are of half of a device's work. With those of the paper (forward, backward and gradients of weights alike, no
    hops) devices take up only as much as fills the time between, and wait for each other once anything takes longer.
    """
    devices = list(dict.fromkeys(stage_devices))
    _check_v(devices, stage_devices)
    most, last = 4 * len(devices), len(devices) - 1
    halves = [2 if stage == last else 1 for stage in range(len(stage_devices))]

    def may_run(action: Action, progress: Progress) -> bool:
        stage, other = action.stage, len(stage_devices) - 1 - action.stage
        both = sum(halves[one] * progress.live[one] for one in {stage, other})
        return action.kind is _BACKWARD or both + halves[stage] <= most - (stage < last)

    units = [Units(5 * half, 6 * half, 5 * half, hop=5) for half in halves]
    units[0] = Units(5, 11, hop=5)  # which runs both parts of its backward as one
    orders = list_schedule(stage_devices, num_microbatches, units, may_run)
    return {device: list(_with_weights_of_first(actions)) for device, actions in orders.items()}


def _with_weights_of_first(order: Sequence[Action]) -> Iterator[Action]:
    for action in order:
        yield action
        if action.kind is _BACKWARD and action.stage == 0:
            yield Action(0, _WEIGHTS, action.microbatch)


def _check_v(devices: Sequence[str], stage_devices: Sequence[str]) -> None:
    if tuple(stage_devices) != ScheduleKind.ZB_V.stages_on(devices):
        raise UsageError(
            "the schedule zb-v needs two stages on each device but the last, dealt there and back",
            notes=[f"{len(stage_devices)} stages on: {', '.join(stage_devices)}"],
            help="take the schedule zb-h1, which runs stages in any placement",
        )


def _zero_bubble(stage_devices: Sequence[str], num_microbatches: int, *, ahead: int) -> dict[str, list[Action]]:
    orders = _one_f_one_b(stage_devices, num_microbatches, ahead=ahead)
    return {device: list(_with_weights(actions, num_microbatches, ahead)) for device, actions in orders.items()}


def _with_weights(order: Sequence[Action], num_microbatches: int, ahead: int) -> Iterator[Action]:
    """The order with gradients of weights, which wait `ahead` microbatches for each stage before, or to the end."""
    left: list[Action] = []
    for action in order:
        yield action
        if action.kind is _BACKWARD:
            later = ahead * action.stage
            if action.microbatch >= later:
                yield Action(action.stage, _WEIGHTS, action.microbatch - later)
            if action.microbatch >= num_microbatches - later:
                left.append(Action(action.stage, _WEIGHTS, action.microbatch))
    yield from left


def _interleaved(stage_devices: Sequence[str], num_microbatches: int) -> dict[str, list[Action]]:
    devices = list(dict.fromkeys(stage_devices))
    num_devices, num_stages = len(devices), len(stage_devices)
    _check_interleaved(devices, stage_devices, num_microbatches)
    if num_devices == num_stages:
        return _one_f_one_b(stage_devices, num_microbatches)
    groups = [range(first, first + num_devices) for first in range(0, num_microbatches, num_devices)]
    return {
        device: list(
            _alternate(
                [Action(s, _FORWARD, m) for group in groups for s in stages for m in group],
                [Action(s, _BACKWARD, m) for group in groups for s in reversed(stages) for m in group],
                # A microbatch's path to the last device and back leaves time for two forwards per device between.
                num_warmup=2 * (num_devices - 1 - index) + (len(stages) - 1) * num_devices,
            )
        )
        for index, device in enumerate(devices)
        for stages in [range(index, num_stages, num_devices)]
    }


def _check_interleaved(devices: Sequence[str], stage_devices: Sequence[str], num_microbatches: int) -> None:
    num_devices = len(devices)
    rounds = len(stage_devices) // num_devices
    if list(stage_devices) != list(devices) * rounds:
        raise UsageError(
            "the interleaved schedule needs stages dealt round robin, equally many to each device",
            notes=[f"{len(stage_devices)} stages on: {', '.join(stage_devices)}", f"{num_devices} devices"],
            help="take the schedule 1f1b, which runs stages in any placement",
        )
    if num_microbatches % num_devices:
        lower = num_microbatches // num_devices * num_devices
        works = f"{lower} or {lower + num_devices}" if lower else f"{num_devices}"
        raise UsageError(
            "the interleaved schedule needs a number of microbatches that is a multiple of the devices'",
            notes=[f"{num_microbatches} microbatches, {num_devices} devices"],
            help=f"take {works} microbatches, or the schedule 1f1b",
        )


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], *, num_warmup: int) -> Iterator[Action]:
    """Warm up with forwards, then one forward and one backward in turn, then drain the backwards left."""
    ahead, behind = iter(forwards), iter(backwards)
    yield from islice(ahead, num_warmup)
    for forward in ahead:
        yield forward
        yield next(behind)
    yield from behind
