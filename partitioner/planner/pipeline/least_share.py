"""How often a step takes as long as a microbatch through all stages, at the least, wherever these are cut.

S stages that take T together, with M microbatches. In gpipe and 1F1B, stage s with w_s begins when the first microbatch
has passed those before it, P_s both ways with what is left to do behind its last backward: the step takes P_s + M w_s.
A mean of these in which every w has the same weight bounds all cuts: with weights that grow by M / (M - 1) from stage
to stage, T / (1 - (1 - 1/M)^S). Zero-bubble schedules leave parts of P_s for later: there, only the work counts here.

In the interleaved schedule each of S devices has two stages, dealt round robin: device d has d and S + d, which take it
w and u seconds for a microbatch, both ways. All stages together take T; those before stage d take P, and those of the
second round before stage S + d take Q.

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

from partitioner.stages.schedules import ScheduleKind


def least_share(schedule: ScheduleKind, num_stages: int, num_devices: int, num_microbatches: int) -> float:
    """The step of any cut over the seconds of a microbatch through all stages, both ways, where stages wait."""
    match schedule:
        case ScheduleKind.SEQUENTIAL:
            return float(num_microbatches)
        case ScheduleKind.GPIPE | ScheduleKind.ONE_F_ONE_B if num_stages == num_devices:
            return 1 / (1 - (1 - 1 / num_microbatches) ** num_stages)
        case ScheduleKind.INTERLEAVED if num_stages == 2 * num_devices:
            return least_interleaved_share(num_devices, num_microbatches)
        case _:
            return num_microbatches / num_devices


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
