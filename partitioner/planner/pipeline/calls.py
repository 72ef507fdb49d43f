"""The calls of a step in microbatches, what each waits for, and the longest path through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import merged_order

Floats = NDArray[np.float64]


CallSeconds = Mapping[ActionKind, Floats]
"""Seconds of a call of each kind, by stage."""


@dataclass(frozen=True, slots=True)
class Path:
    """The longest path.

    Attributes:
        seconds: From the start of the step to its end.
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
        there_seconds: Of a microbatch over the boundary behind each stage but the last.
        back_seconds: Of its gradients.

    Attributes:
        on_device: Which stages a device has, 0 or 1: `(devices, stages)`; devices in the order of their first stages.
    """

    def __init__(
        self,
        orders: Mapping[str, Sequence[Action]],
        devices: Sequence[int],
        going_back: range,
        *,
        there_seconds: Sequence[float],
        back_seconds: Sequence[float],
    ) -> None:
        def runs(action: Action) -> bool:
            least = going_back.start + (action.kind is ActionKind.WEIGHTS)
            return action.kind is ActionKind.FORWARD or least <= action.stage < going_back.stop

        self.num_stages, self._first_back = len(devices), going_back.start
        self.on_device = np.array([[a == b for b in devices] for a in dict.fromkeys(devices)], dtype=float)
        self._order = list(filter(runs, merged_order(orders, self.num_stages)))
        index = {action: number for number, action in enumerate(self._order)}
        before = {b: a for actions in orders.values() for a, b in pairwise(filter(runs, actions))}
        self._device = self.on_device.argmax(axis=0)[[action.stage for action in self._order]].tolist()
        self._last = list({device: number for number, device in enumerate(self._device)}.values())
        self._before = [index[before[action]] if action in before else None for action in self._order]
        self._makers: list[tuple[int, int | None, bool] | None] = []
        for action in self._order:
            other = next(filter(index.__contains__, _makers(action)), None)
            if other is None:
                self._makers.append(None)
                continue
            crossed = min(other.stage, action.stage) if devices[other.stage] != devices[action.stage] else None
            self._makers.append((index[other], crossed, action.kind is ActionKind.FORWARD))
        self._waits = self._waits_over(there_seconds, back_seconds)

    def over(self, there_seconds: Sequence[float], back_seconds: Sequence[float]) -> Calls:
        """The same calls where boundaries take so long, as above."""
        other = copy(self)
        other._waits = self._waits_over(there_seconds, back_seconds)
        return other

    def _waits_over(
        self, there_seconds: Sequence[float], back_seconds: Sequence[float]
    ) -> list[list[tuple[int, float]]]:
        """For each call, the numbers of those that it waits for, and how long after their ends."""
        every = []
        for before, maker in zip(self._before, self._makers, strict=True):
            waits = [] if before is None else [(before, 0.0)]
            if maker is not None:
                number, crossed, is_forward = maker
                hops = there_seconds if is_forward else back_seconds
                waits.append((number, 0.0 if crossed is None else hops[crossed]))
            every.append(waits)
        return every

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self._order)

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

    def step_seconds(self, seconds: CallSeconds, once: Floats, summing: Floats, updating: Floats) -> float:
        """The step where calls take so long, and stages so long before them, behind them, and then for updates."""
        before, behind, last = (self.on_device @ of_stages for of_stages in (once, summing, updating))
        return self.longest_path(seconds, before, behind).seconds + float(last.max())

    def longest_path(self, seconds: CallSeconds, before: Floats, behind: Floats) -> Path:
        """The longest path where calls take so long, and devices `(devices,)` so long before and behind them."""
        of_kind = {kind: of_stage.tolist() for kind, of_stage in seconds.items()}
        earliest = before.tolist()
        ends: list[float] = []
        latest: list[tuple[int, float] | None] = []
        for action, device, waits in zip(self._order, self._device, self._waits, strict=True):
            start, last = earliest[device], None
            for wait in waits:
                if (ready := ends[wait[0]] + wait[1]) > start:
                    start, last = ready, wait
            ends.append(start + of_kind[action.kind][action.stage])
            latest.append(last)
        longest, at = max((ends[last] + behind[self._device[last]], last) for last in self._last)
        counts = {kind: np.zeros(self.num_stages, dtype=np.intp) for kind in seconds}
        step: tuple[int, float] | None = (at, 0.0)
        first, hops = at, 0.0
        while step is not None:
            first = step[0]
            action = self._order[first]
            counts[action.kind][action.stage] += 1
            hops += step[1]
            step = latest[first]
        return Path(float(longest), counts, hops, self._device[first], self._device[at])


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
