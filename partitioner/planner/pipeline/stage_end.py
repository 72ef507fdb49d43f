"""When the last action of a stage ends, in closed form, from the seconds of its own calls and of the other stages.

Let stage s take f seconds for a forward and b for a backward, all stages before it a seconds for a microbatch both ways
(transfers included), and all stages behind it z. Its device works M (f + b). It starts when the first microbatch has
passed the stages before it, and what it does last goes back through them, so these seconds come on top: a in all. Where
replicas sum gradients, a stage sums its own when its last backward has ended, while stages before it still work.

Between, it waits for microbatches that are on their way through the stages behind it and back, z seconds each:

- `gpipe`: the first backward follows the last forward by z, and the device has nothing to do meanwhile.
- `1f1b`: with k microbatches in flight, the first backward comes z after the first forward, and the device does k - 1
  forwards meanwhile; the last backward comes z after the last forward, and the device does k - 1 backwards meanwhile.
  With more than k microbatches, the device waits both times; otherwise both are one.
- `zb-h1` and `zb-h2`: as `1f1b` before the first backward, with k microbatches in flight by then. Later, the device
  has gradients of weights to compute while it waits. What no other stage waits for, w of b, is neither in z nor in
  what returns; and that of the last microbatches comes behind the last backward, while that returns.
- `1f1b`, `zb-h1` and `zb-h2` start a microbatch only when the one k before it has come back: M of them take M / k
  times, rounded up, what one takes to pass the stage, those behind it, and the stage again. In equal stages the device
  is as busy as that anyway, and transfers come on top.
- `sequential`: each microbatch passes the stages behind and comes back before the next one starts.
- `interleaved` and `zb-v`: the device may work for its other stage, so that no waiting is certain. What that one adds
  in `interleaved` is in `least_share.py`, and what stages of all devices make each other wait in
  `solve/longest_paths.py`.

In inference, and where no gradient comes back, microbatches only pass on, and z counts once or not at all.

In equal stages with k = S - s, `gpipe` and `1f1b` both come to (M + S - 1)(f + b), the length in the papers (see
`stages.schedules`). With unlike stages, no execution in the order of the schedule ends before the largest of these
ends: they are lower bounds, which the test of this module checks against simulations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.stages.schedules import ScheduleKind

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds of a microbatch: in a stage, and in those before and behind it. Arrays of shapes that broadcast.

    Attributes:
        forward: Of the stage's forward.
        backward: Of its backward; 0 in inference.
        weights: Of the part of it that is left for later; 0 where the schedule leaves nothing.
        arriving: Forward of the stages before it, with transfers.
        returning: Their backward, without what is left for later.
        behind: Forward and backward of the stages behind it, without what is left for later.
        summing: Of the sums of its gradients over replicas, once a step.
    """

    forward: Floats
    backward: Floats
    weights: Floats
    arriving: Floats
    returning: Floats
    behind: Floats
    summing: Floats

    def end(self, kind: ScheduleKind, num_microbatches: int, num_live: int, num_late: int = 0) -> Floats:
        """Seconds from the start of the step until all that needs the stage has ended, but for updates.

        Args:
            kind: The schedule; what the device does for other stages, if it has two, is not in it.
            num_microbatches: Parts of the batch.
            num_live: Microbatches that the stage holds at a time.
            num_late: Microbatches whose gradients of weights come behind the last backward.
        """
        all_done = self.arriving + self._busy(kind, num_microbatches, num_live)
        return all_done + np.maximum(self.returning - num_late * self.weights, self.summing)

    def _busy(self, kind: ScheduleKind, num_microbatches: int, num_live: int) -> Floats:
        """From the start of the stage's first forward to the end of its last backward, and of all that it left."""
        both = self.forward + self.backward
        if kind is ScheduleKind.SEQUENTIAL:
            return num_microbatches * (both + self.behind)
        if kind is ScheduleKind.GPIPE:
            return num_microbatches * both + self.behind
        if kind in (ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V):
            return num_microbatches * both
        turns = math.ceil(num_microbatches / num_live) * (both - self.weights + self.behind)
        first = np.maximum(0.0, self.behind - (num_live - 1) * self.forward)
        if kind.parts_backward:
            return np.maximum(turns, num_microbatches * both + first)
        last = np.maximum(0.0, self.behind - (num_live - 1) * self.backward)
        idle = first + last if num_microbatches > num_live else np.maximum(first, last)
        return np.maximum(turns, num_microbatches * both + idle)
