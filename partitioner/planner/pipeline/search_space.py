"""The search space of pipelines, and one simulated candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from partitioner.ir.costed import CostedGraph
from partitioner.ir.execution import Execution
from partitioner.ir.plan import Considered
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.simulate.all_reduces import ReplicaSums
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.stages.schedules import ScheduleKind

PREFERENCE = (
    ScheduleKind.ONE_F_ONE_B,
    ScheduleKind.GPIPE,
    ScheduleKind.ZB_H1,
    ScheduleKind.ZB_H2,
    ScheduleKind.ZB_V,
    ScheduleKind.INTERLEAVED,
    ScheduleKind.SEQUENTIAL,
)
"""Of equally good schedules, the first is preferred."""

MANY = 16
"""With more devices, only some numbers of them, and of replicas, are tried."""

Recompute = Literal["auto", "none", "all"]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Stages that run forward ops again in their backward rather than keep what these made.

    Attributes:
        full: Those that run all of them again, and keep their inputs only.
        selective: Those that run only cheap ones again (`selective.py`).
    """

    full: frozenset[int] = frozenset()
    selective: frozenset[int] = frozenset()

    @property
    def stages(self) -> frozenset[int]:
        """All of them."""
        return self.full | self.selective

    def with_selective(self, stages: Iterable[int]) -> Recomputed:
        """With more stages that run at least cheap ops again."""
        return Recomputed(self.full, self.selective.union(stages) - self.full)

    def with_full(self, stages: Iterable[int]) -> Recomputed:
        """With more stages that run all their ops again."""
        return Recomputed(self.full.union(stages), self.selective.difference(stages))


NOTHING = Recomputed()
"""All stages keep their activations."""


@dataclass(frozen=True, kw_only=True)
class PipelineSearchSpace:
    """The pipelines to choose from, and functions that give their costs and programs.

    Attributes:
        counts: Numbers of microbatches.
        schedules: Schedules; `sequential` with one microbatch and no recompute is the step as one graph.
        recompute: `none`; `all` stages; or `auto`, as many stages as needed to fit.
        costed_for: The step for a number of rows, with its costs and those of adding some of its tensors to running
            totals; called once for each.
        programs: The stage programs of an execution.
        unpipelined: Whether the step may run as one graph at all; replicas run in stages.
        least_devices: Fewer are known not to have the memory.
        known_seconds: The step of another layout: what takes longer need not be bounded closer, nor simulated.
        sums: Of gradients over replicas; None where there is one.
    """

    counts: tuple[int, ...]
    schedules: tuple[ScheduleKind, ...]
    recompute: Recompute = "auto"
    costed_for: Callable[[int, tuple[str, ...]], CostedGraph]
    programs: Callable[[Execution], StagePrograms]
    unpipelined: bool = True
    least_devices: int = 1
    known_seconds: float = math.inf
    sums: ReplicaSums | None = None

    @property
    def is_of_replica(self) -> bool:
        """Whether the step is that of one replica of several."""
        return not self.unpipelined

    @property
    def allows_unpipelined(self) -> bool:
        """Whether the step may run as one graph, every op as soon as it can."""
        unpipelined = 1 in self.counts and ScheduleKind.SEQUENTIAL in self.schedules
        return self.unpipelined and unpipelined and self.recompute != "all"


@dataclass(frozen=True, kw_only=True)
class PipelineCandidate:
    """A pipeline: stages on devices, a number of microbatches, a schedule, stages that recompute.

    Attributes:
        assignment: Device index by item.
        placement: Device index by op, as in the programs.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        programs: The stage programs.
        staged: Their simulation.
        over_bytes: Beyond the limits, for each device of the topology.
        sum_bytes: Of the peaks, what sums of gradients over replicas add.
    """

    assignment: tuple[int, ...]
    placement: dict[str, int]
    num_microbatches: int
    schedule: ScheduleKind
    programs: StagePrograms
    staged: PipelineSchedule
    over_bytes: tuple[int, ...]
    sum_bytes: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether no device's peak passes its limit."""
        return not any(self.over_bytes)

    @property
    def fits_without_sums(self) -> bool:
        """Whether it would fit if gradients were not summed."""
        return all(over <= sums for over, sums in zip(self.over_bytes, self.sum_bytes, strict=True))

    @property
    def recompute(self) -> Recomputed:
        """Stages that recompute."""
        selective = frozenset(self.programs.rerun)
        return Recomputed(self.programs.recomputed - selective, selective)

    @property
    def considered(self) -> Considered:
        """The figures of the candidate that the plan keeps."""
        return Considered(
            num_stages=len(self.programs.stages),
            num_microbatches=self.num_microbatches,
            schedule=self.schedule.value,
            num_recomputed=len(self.programs.recomputed),
            step_seconds=self.staged.step_seconds,
            largest_peak_bytes=self.staged.largest_peak_bytes,
            fits=self.fits,
        )
