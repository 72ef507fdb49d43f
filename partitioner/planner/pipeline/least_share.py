"""How often a step takes as long as a microbatch through all stages, at the least, wherever these are cut.

S stages that take T together, with M microbatches. In gpipe and 1F1B, stage s with w_s begins when the first microbatch
has passed those before it, P_s both ways with what is left to do behind its last backward: the step takes P_s + M w_s.
A mean of these in which every w has the same weight bounds all cuts: with weights that grow by M / (M - 1) from stage
to stage, T / (1 - (1 - 1/M)^S). Zero-bubble schedules leave parts of P_s for later: there, only the work counts here.

In the interleaved schedule each of D devices has V stages, dealt round robin. Before the first forward of stage s the
first microbatch passes all stages before it, through which the last goes back behind the last backward of s: P_s both
ways. Between, the device does all of s and of its stages of later rounds, and all of its earlier ones but their first D
forwards and their last D backwards: P_s + M (w of s and of later rounds) + (M - D) (w of earlier rounds).

A mean of all these bounds in which every w has the same weight is a share of T, whatever the cut: a solution of the
dual of a linear program. Work alone gives M / D, and equal stages take M / D + (D - 1) / VD.
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
        case ScheduleKind.INTERLEAVED:
            return least_interleaved_share(num_devices, num_stages // num_devices, num_microbatches)
        case _:
            return num_microbatches / num_devices


@cache
def least_interleaved_share(num_devices: int, rounds: int, num_microbatches: int) -> float:
    """The share of the seconds of a microbatch through all stages, both ways, that no interleaved step is shorter than.

    Args:
        num_devices: D.
        rounds: V, the stages of each.
        num_microbatches: M, a multiple of D.
    """
    total = rounds * num_devices
    in_round, on_device = np.divmod(np.arange(total), num_devices)
    # A row for the w of each stage, a column for the bound of each.
    passed = np.triu(np.ones((total, total)), 1)
    worked = np.where(in_round[:, None] < in_round, num_microbatches - num_devices, num_microbatches)
    weights = np.full((total + 1, total + 1), -1.0)  # with a column for the share, and a row for the mean
    weights[:total, :total] = passed + worked * (on_device[:, None] == on_device)
    weights[total] = [*np.ones(total), 0.0]
    *of_bounds, share = np.linalg.solve(weights, np.eye(total + 1)[total])
    work = num_microbatches / num_devices
    return max(work, float(share)) if min(of_bounds) >= 0 else work
