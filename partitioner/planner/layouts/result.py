"""What a search found: a placement, how the batch passes through it, and what is proved of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from partitioner.ir.plan import Baseline, Considered, SolverInfo
from partitioner.ir.schedule import Schedule
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.model.coarsen import Coarsening
from partitioner.planner.simulate.exchange import Exchange
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The chosen placement, how the batch passes through it, what it was compared with, and what is proved of it.

    `staged` and `programs` are None where the step runs as one graph; the schedule is then `sequential`. `exchanges` is
    what replicas send each other to sum gradients.
    """

    placement: dict[str, int]
    schedule: Schedule
    coarsening: Coarsening
    baselines: tuple[Baseline, ...]
    solver: SolverInfo
    notes: tuple[str, ...]
    num_microbatches: int = 1
    schedule_kind: str = ScheduleKind.SEQUENTIAL.value
    recompute: frozenset[int] = field(default_factory=frozenset)
    staged: PipelineSchedule | None = None
    programs: StagePrograms | None = None
    considered: tuple[Considered, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
