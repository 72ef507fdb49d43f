"""The calls of a step in microbatches, what each waits for, and the longest paths through them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import merged_order

Floats = NDArray[np.float64]
CallSeconds = Mapping[ActionKind, Floats]
"""Seconds of a call of each kind, by stage."""
Hops = tuple[Sequence[float], Sequence[float]]
"""Seconds of a microbatch over the boundary behind each stage but the last, and those of its gradients back."""
_KINDS = tuple(ActionKind)


@dataclass(frozen=True, slots=True)
class Path:
    """A longest path to the end of a device.

    Attributes:
        seconds: From the start of the step to that end.
        counts: How often each stage is called on it, by kind.
        hop_seconds: What microbatches take between devices on it.
        first_device: Where it begins, among the devices of `Calls`.
        last_device: Where it ends.
    """

    seconds: float
    counts: Mapping[ActionKind, NDArray[np.intp]]
    hop_seconds: float
    first_device: int
    last_device: int


class Calls:
    """All calls of a step, and what each of them waits for.

    Args:
        orders: The actions of each device, in order.
        devices: Device of each stage.
        going_back: The stages with a backward, which but for the last waits for the one behind. Nobody waits for the
            first of them, whose backward is in one part in every schedule.

    Attributes:
        on_device: Which stages a device has, 0 or 1: `(devices, stages)`; devices in the order of their first stages.
        count: Number of calls.
    """

    def __init__(self, orders: Mapping[str, Sequence[Action]], devices: Sequence[int], going_back: range) -> None:
        def runs(action: Action) -> bool:
            least = going_back.start + (action.kind is ActionKind.WEIGHTS)
            return action.kind is ActionKind.FORWARD or least <= action.stage < going_back.stop

        self.num_stages, self._first_back = len(devices), going_back.start
        self.on_device = np.array([[a == b for b in devices] for a in dict.fromkeys(devices)], dtype=float)
        order = list(filter(runs, merged_order(orders, self.num_stages)))
        self.count = len(order)
        index = {action: number for number, action in enumerate(order)}
        # For each call: which of all seconds it takes, which ends it waits for, that of the call before it and that of
        # what its microbatch comes from, and over which boundary that comes. Behind the ends of all calls are those of
        # what devices do before their first, and one for calls whose microbatch comes from nowhere.
        self._calls: list[tuple[int, int, int, int]] = []
        num_devices = len(self.on_device)
        device_of_stage: list[int] = self.on_device.argmax(axis=0).tolist()
        self._last_of_device = {device: self.count + device for device in range(num_devices)}
        for number, action in enumerate(order):
            device, from_where, crossed = device_of_stage[action.stage], self.count + num_devices, 0
            if maker := next(filter(index.__contains__, _makers(action)), None):
                from_where = index[maker]
                if devices[maker.stage] != devices[action.stage]:
                    is_back = action.kind is not ActionKind.FORWARD
                    crossed = 1 + min(maker.stage, action.stage) + is_back * (self.num_stages - 1)
            seconds = _KINDS.index(action.kind) * self.num_stages + action.stage
            self._calls.append((seconds, self._last_of_device[device], from_where, crossed))
            self._last_of_device[device] = number

    def seconds_of(self, forward: Floats, backward: Floats, weights: Floats, call_seconds: float) -> CallSeconds:
        """Seconds of calls with so much work by stage, of whose backward `weights` are left for later.

        Where nothing is left there is no call for it.
        """
        later = np.where(np.arange(self.num_stages) == self._first_back, 0.0, weights)
        return {
            ActionKind.FORWARD: forward + call_seconds,
            ActionKind.BACKWARD: backward - later + call_seconds,
            ActionKind.WEIGHTS: later + np.where(later > 0, call_seconds, 0.0),
        }

    def with_calls(self, once: Floats, call_seconds: float) -> Floats:
        """Seconds of what stages do once, by stage, with a call for all that a device does so, if anything."""
        has_any = (self.on_device @ once > 0).astype(float)
        is_first = self.on_device * (np.cumsum(self.on_device, axis=1) == 1)
        return once + call_seconds * (has_any @ is_first)

    def step_seconds(self, seconds: CallSeconds, hops: Hops, once: Floats, summing: Floats, updating: Floats) -> float:
        """The step where calls take so long, and stages so long before them, behind them, and then for updates."""
        before, behind, last = (self.on_device @ of_stages for of_stages in (once, summing, updating))
        ends = self._ends(_flat(seconds), _flat_hops(hops), before)
        longest = max(ends[call] + behind[device].item() for device, call in self._last_of_device.items())
        return longest + float(last.max())

    def longest_paths(
        self, seconds: CallSeconds, hops: Hops, before: Floats, behind: Floats, more_than: float, most: int
    ) -> list[Path]:
        """The longest paths to the ends of devices that end later than that, at most so many, the longest first, where
        calls take so long, and devices `(devices,)` so long before and behind them."""
        waits = _flat_hops(hops)
        ends = self._ends(_flat(seconds), waits, before)
        ends_of_devices = {device: ends[last] + behind[device].item() for device, last in self._last_of_device.items()}
        latest = heapq.nlargest(most, ends_of_devices.items(), key=lambda device_and_end: device_and_end[1])
        return [self._path(device, end, ends, waits) for device, end in latest if end > more_than]

    def _path(self, last: int, end: float, ends: Sequence[float], waits: Sequence[float]) -> Path:
        """The longest path to the end of a device."""
        number, called, hop_seconds = self._last_of_device[last], list[int](), 0.0
        while number < self.count:
            taken, previous, maker, hop = self._calls[number]
            called.append(taken)
            has_waited = ends[maker] + waits[hop] > ends[previous]
            hop_seconds += waits[hop] if has_waited else 0.0
            number = maker if has_waited else previous
        counts = np.bincount(called, minlength=len(_KINDS) * self.num_stages).reshape(len(_KINDS), self.num_stages)
        return Path(end, dict(zip(_KINDS, counts, strict=True)), hop_seconds, number - self.count, last)

    def _ends(self, seconds: Sequence[float], waits: Sequence[float], before: Floats) -> list[float]:
        """When each call ends, each device has done what comes before, and, long ago, nothing."""
        ends = [0.0] * self.count + [*before.tolist(), -math.inf]
        for number, (taken, previous, maker, hop) in enumerate(self._calls):
            start, arrived = ends[previous], ends[maker] + waits[hop]
            ends[number] = (arrived if arrived > start else start) + seconds[taken]
        return ends


def _flat(seconds: CallSeconds) -> list[float]:
    return np.concatenate([seconds[kind] for kind in _KINDS]).tolist()


def _flat_hops(hops: Hops) -> list[float]:
    """Those over no boundary, then there, then back."""
    return [0.0, *hops[0], *hops[1]]


def _makers(action: Action) -> Iterator[Action]:
    """What an action's microbatch comes from: the first of these that there is."""
    stage, kind, microbatch = action.stage, action.kind, action.microbatch
    match kind:
        case ActionKind.FORWARD:
            yield Action(stage - 1, ActionKind.FORWARD, microbatch)
        case ActionKind.BACKWARD:
            yield Action(stage + 1, ActionKind.BACKWARD, microbatch)
            yield Action(stage, ActionKind.FORWARD, microbatch)
        case ActionKind.WEIGHTS:
            yield Action(stage, ActionKind.BACKWARD, microbatch)
