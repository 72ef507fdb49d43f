"""The result of a search: a placement, how the step runs on it, and the proved bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partitioner.errors import InfeasibleError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Baseline, Considered, SolverInfo
from partitioner.ir.schedule import Schedule
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.simulate.exchange import Exchange
from partitioner.planner.simulate.pipelined_schedule import PipelineSchedule
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class MemoryShortfall:
    """A graph that does not fit, with the facts for the error message.

    Attributes:
        costed: The graph, its costs and its devices.
        coarsening: Its items.
        attempts: The placements (device by op) that came closest.
        lacking_bytes: What each device lacks in the simulated pipeline whose fullest lacks least; none if none was.
        alternatives: Arguments under which a placement fits.
    """

    costed: CostedGraph
    coarsening: Coarsening
    attempts: Sequence[Mapping[str, int]]
    lacking_bytes: tuple[int, ...] = ()
    alternatives: tuple[str, ...] = ()


class OutOfMemoryError(InfeasibleError):
    """No placement fits into the memory of the devices; `shortfall` has the facts, where they were asked for."""

    def __init__(self, message: str, shortfall: MemoryShortfall | None = None) -> None:
        super().__init__(message)
        self.shortfall = shortfall


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The chosen placement, how the step runs on it, what it was compared with, and the proved bound.

    `staged` and `programs` are None where the step runs as one graph; the schedule is then `sequential`, and
    `delays_gradients` says whether gradients are delayed that no other device waits for.
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
    delays_gradients: bool = False
    staged: PipelineSchedule | None = None
    programs: StagePrograms | None = None
    considered: tuple[Considered, ...] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What replicas send each other to sum gradients."""
        return self.staged.exchanges if self.staged else ()


def with_bounds(
    solver: SolverInfo, objective: float, *, lower_bound: float, family_lower_bound: float | None, family: str
) -> SolverInfo:
    """The same for another objective and other bounds; a bound above the objective counts as equal to it."""

    def gap(bound: float) -> float:
        return (objective - bound) / objective if objective > 0 else 0.0

    bound, of_family = min(lower_bound, objective), family_lower_bound
    of_family = None if of_family is None else max(bound, min(of_family, objective))
    return replace(
        solver,
        objective=objective,
        lower_bound=bound,
        gap=gap(bound),
        family_lower_bound=of_family,
        family_gap=None if of_family is None else gap(of_family),
        family=family,
    )
