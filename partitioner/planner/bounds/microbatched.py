"""Lower bound on a step in microbatches: no stages, on any devices, can be simulated faster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.bounds.step_time import least_load_seconds, longest_path_seconds


@dataclass(frozen=True, kw_only=True)
class OpRuns:
    """Which ops of a graph run in a step of stage programs, in graph order; others are not needed for its results.

    Attributes:
        once: Those that run at the least once.
        repeated: Those that run for each microbatch. A sum of gradients may, and is not one of them.
        updates: Updates of variables.
    """

    once: NDArray[np.bool_]
    repeated: NDArray[np.bool_]
    updates: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: OpGraph, programs: StagePrograms) -> OpRuns:
        """Those of the programs of a graph; they are the same for every placement."""
        repeated = {name for program in programs.repeated for name in program.ops}
        once = {name for program in (*programs.once, *programs.update) for name in program.ops}
        updates = np.array([op.phase is Phase.UPDATE for op in graph.ops])
        is_repeated = [op.name in repeated and op.name not in once and op.type != "AddN" for op in graph.ops]
        return cls(
            once=np.array([op.name in repeated or op.name in once for op in graph.ops]),
            repeated=np.array(is_repeated) & ~updates,
            updates=updates,
        )


def microbatched_bound_seconds(costed: CostedGraph, runs: OpRuns, num_microbatches: int) -> float:
    """The load of the busiest device, or the path of a microbatch; costs are those of one microbatch."""
    seconds = costed.seconds_array * runs.once[:, None]
    path = longest_path_seconds(costed.graph.maker_indices, seconds.min(axis=1).tolist())
    load = np.where(runs.repeated[:, None], num_microbatches * seconds, seconds)
    return max(path, least_load_seconds(load[~runs.updates]), least_load_seconds(load))
