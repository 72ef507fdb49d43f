"""What no cut into two stages per device, dealt round robin, can avoid in the interleaved schedule.

Of S devices, device d has the stages d and S + d, which take it w and u seconds for a microbatch, both ways. All stages
together take T; those before stage d take P, and those of the second round before stage S + d take Q. There are M
microbatches.

1. The device does its M (w + u) after the first has passed the stages before d, and before the last has gone back
   through them: the step takes P + M (w + u) at the least.
2. Between the first forward and the last backward of stage S + d, the device does all of that stage, and all of stage d
   but its first S forwards and its last S backwards: the step takes (w of all devices) + Q + M u + (M - S) w.

A mean of all these bounds in which every w and u has the same weight is a share of T, whatever the cut: a solution of
the dual of a linear program. Work alone gives M / S, and equal stages take M / S + (S - 1) / 2S.
"""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def least_interleaved_share(num_devices: int, num_microbatches: int) -> float:
    """The share of the seconds of a microbatch through all stages, both ways, that no interleaved step is shorter than.

    Args:
        num_devices: S, with two stages each.
        num_microbatches: M, a multiple of S.
    """
    count, total = num_devices, 2 * num_devices
    behind = np.triu(np.ones((count, count)), 1)  # d, e: whether stage d is before stage e
    every = np.ones((count, count))
    # A row for each w and then each u, a column for each of the bounds 1 and then 2, and one for the share.
    weights = np.zeros((total + 1, total + 1))
    weights[:count, :count] = behind + num_microbatches * np.eye(count)
    weights[:count, count:total] = every + (num_microbatches - count) * np.eye(count)
    weights[count:total, :count] = num_microbatches * np.eye(count)
    weights[count:total, count:total] = behind + num_microbatches * np.eye(count)
    weights[:total, total] = -1.0
    weights[total, :total] = 1.0  # a mean of the bounds
    *of_bounds, share = np.linalg.solve(weights, np.eye(total + 1)[total])
    work = num_microbatches / count
    return max(work, float(share)) if min(of_bounds) >= 0 else work
