"""The calls of a step in microbatches, what each waits for, and the longest path through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import merged_order

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Path:
    """The longest path: its seconds, how often each stage works forward and backward on it, and all else on it."""

    seconds: float
    forwards: NDArray[np.intp]
    backwards: NDArray[np.intp]
    fixed: float


class Calls:
    """All calls of a step, and what each of them waits for.

    Args:
        orders: The actions of each device, in order.
        devices: Device of each stage.
        going_back: The stages with a backward, which but for the last waits for the one behind.
        call_seconds: Of a call beyond its work.
        there_seconds: Of a microbatch over a boundary between devices.
        back_seconds: Of its gradients.
    """

    def __init__(
        self,
        orders: Mapping[str, Sequence[Action]],
        devices: Sequence[int],
        going_back: range,
        *,
        call_seconds: float,
        there_seconds: float,
        back_seconds: float,
    ) -> None:
        def runs(action: Action) -> bool:
            return action.kind is ActionKind.FORWARD or action.stage in going_back

        num_stages = len(devices)
        self._order = list(filter(runs, merged_order(orders, num_stages)))
        index = {action: number for number, action in enumerate(self._order)}
        before = {b: a for actions in orders.values() for a, b in pairwise(filter(runs, actions))}
        self._call, self._num_stages = call_seconds, num_stages
        # A last backward of the first stage is what sums of its gradients wait for.
        self._last = max((n for a, n in index.items() if a.stage == 0 and a.kind is ActionKind.BACKWARD), default=None)
        self._waits: list[list[tuple[int, float]]] = []
        for action in self._order:
            waits = [(index[before[action]], 0.0)] if action in before else []
            other = next(filter(index.__contains__, _makers(action)), None)
            if other is not None:
                hop = there_seconds if action.kind is ActionKind.FORWARD else back_seconds
                is_far = devices[other.stage] != devices[action.stage]
                waits.append((index[other], hop if is_far else 0.0))
            self._waits.append(waits)

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self._order)

    def longest_path(self, forward: Floats, backward: Floats) -> Path:
        """The longest path where stages take so many seconds `(stages,)` for a microbatch."""
        seconds = {
            ActionKind.FORWARD: (forward + self._call).tolist(),
            ActionKind.BACKWARD: (backward + self._call).tolist(),
        }
        ends: list[float] = []
        latest: list[tuple[int, float] | None] = []
        for action, waits in zip(self._order, self._waits, strict=True):
            start, last = 0.0, None
            for wait in waits:
                if (ready := ends[wait[0]] + wait[1]) > start:
                    start, last = ready, wait
            ends.append(start + seconds[action.kind][action.stage])
            latest.append(last)
        at = int(np.argmax(ends)) if self._last is None else self._last
        longest, fixed = ends[at], 0.0
        counts = {kind: np.zeros(self._num_stages, dtype=np.intp) for kind in seconds}
        step: tuple[int, float] | None = (at, 0.0)
        while step is not None:
            action = self._order[step[0]]
            counts[action.kind][action.stage] += 1
            fixed += self._call + step[1]
            step = latest[step[0]]
        return Path(longest, counts[ActionKind.FORWARD], counts[ActionKind.BACKWARD], fixed)


def _makers(action: Action) -> Iterator[Action]:
    """What an action's microbatch comes from: the first of these that there is."""
    stage, kind, microbatch = action.stage, action.kind, action.microbatch
    if kind is ActionKind.FORWARD:
        yield Action(stage - 1, ActionKind.FORWARD, microbatch)
    else:
        yield Action(stage + 1, ActionKind.BACKWARD, microbatch)
        yield Action(stage, ActionKind.FORWARD, microbatch)
