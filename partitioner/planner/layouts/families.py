"""The best layout of a family: replicas by one strategy, on any of some groups of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from partitioner.deadline import SHARE_OF_ESTIMATES, SHARE_OF_LAYOUT
from partitioner.errors import InfeasibleError, PartitionError, TimeLimitError, UsageError
from partitioner.ir.plan import Objective, Strategy
from partitioner.ir.units import format_bytes, format_seconds
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.model.tolerances import AS_ESTIMATED, AS_FAST
from partitioner.planner.pipeline.search_space import MANY

# Layouts of a family that fit and are tried though a soft deadline is over.
_LEAST_TRIED = 4
# Estimates up to so many times a known step are named.
_NEAR = 10


@dataclass(frozen=True, kw_only=True)
class Family:
    """The best layout of a strategy, and whether it fits."""

    strategy: Strategy
    layout: ParallelLayout
    fits: bool


def objective_key(layout: ParallelLayout, objective: Objective) -> tuple[float, ...]:
    """The objective, then the number of devices."""
    figures = (layout.step_seconds, float(layout.largest_peak_bytes))
    if objective is Objective.MEMORY:
        return (*reversed(figures), float(layout.num_devices))
    return (figures[0], float(layout.num_devices), figures[1])


def least_step(*planned: Family | ParallelLayout | PartitionError | None) -> float:
    """The least step of what fits, in seconds; infinite where nothing does."""
    layouts = [plan.layout if isinstance(plan, Family) and plan.fits else plan for plan in planned]
    return min((layout.step_seconds for layout in layouts if isinstance(layout, ParallelLayout)), default=math.inf)


class FamilySearch:
    """The search for the best layout of a family, from the least estimate on.

    What takes longer than a known step is not looked at closely, and not at all once time is over. Nobody waits for a
    soft deadline: some layouts that fit are tried in any case.

    Args:
        planner: Plans a layout.
        strategy: Of the replicas.
        groupings: The groups of devices of each layout.
        known_seconds: The step of a layout of another family.
    """

    def __init__(
        self,
        planner: LayoutPlanner,
        strategy: Strategy,
        groupings: Sequence[ReplicaGroups],
        known_seconds: float,
    ) -> None:
        self._planner, self._strategy, self._known_seconds = planner, strategy, known_seconds
        self._num_layouts = len(groupings)
        self._too_large = [groups for groups in groupings if not planner.has_room_for_variables(groups)]
        self._possible = [groups for groups in groupings if groups not in self._too_large]
        self._is_soft = planner.deadline.is_soft
        self._best: ParallelLayout | None = None
        self._error = 1.0  # of the best one's estimate; others leave out the same
        self._num_tried = self._num_late = 0
        self._behind: list[float] = []

    def run(self) -> Family | None:
        """The best layout; where none fits, the one that promises most, as it would be with unlimited memory."""
        estimated = self._estimated()
        self._num_late += len(self._possible) - len(estimated)
        for index, (estimate, groups) in enumerate(estimated):
            if self._is_behind(estimate):
                self._behind.append(estimate)
            elif self._is_late:
                self._num_late += len(estimated) - index
                break
            elif not self._has_more_rows_than_fit(groups):
                self._try(estimate, groups)
        if self._best is not None:
            return Family(strategy=self._strategy, layout=self._best, fits=True)
        return None if self._behind else self._too_large_by_least()

    @property
    def notes(self) -> Iterator[str]:
        """For how many layouts there was no time."""
        if self._num_late:
            yield (
                f"no time was left for {self._num_late} of {self._num_layouts} {self._strategy} layouts; a longer time "
                "limit has some"
            )

    @property
    def reason(self) -> str:
        """Why none of the family was simulated, where all are behind, or none has room for its variables."""
        if self._best is None and self._too_large and not self._possible:
            variables = format_bytes(self._planner.variable_bytes)
            return f"{self._strategy} replicas do not fit: each has variables of {variables}"
        if self._best is not None or not self._behind:
            return ""
        least = min(self._behind)
        is_near = least < _NEAR * self._known_seconds  # what does not fit is estimated at far more
        how = f"to take {format_seconds(least)} a step" if is_near else "to take longer or not to fit"
        return f"{self._strategy} replicas are estimated {how}: the time of the search was over, and none was simulated"

    def _estimated(self) -> list[tuple[float, ReplicaGroups]]:
        """The layouts with their estimates, the least first; of what takes longer than others, infinity.

        All are estimated, unless a time limit allows less: then those that promise most. Where memory is minimised,
        that is all that they are sorted by.
        """
        planner, promising = self._planner, sorted(self._possible, key=self._planner.promised_seconds)
        if planner.objective is Objective.MEMORY:
            return [(planner.promised_seconds(groups), groups) for groups in promising]
        deadline, most = planner.with_share(SHARE_OF_ESTIMATES).deadline, self._known_seconds
        estimated: list[tuple[float, ReplicaGroups]] = []
        for groups in promising:
            if deadline.is_over and not deadline.is_soft:
                break
            seconds = math.inf
            if planner.bound_seconds(groups) < most:
                with suppress(PartitionError):  # is raised again where it is tried
                    seconds = planner.estimated_seconds(self._strategy, groups, most)
            estimated.append((seconds, groups))
            most = min(most, AS_ESTIMATED * seconds)
        return sorted(estimated, key=lambda one: one[0])

    def _is_behind(self, estimate: float) -> bool:
        """Whether a layout is estimated to be slower than what is known.

        While there is time, a first one is planned all the same, to be listed. Later, where the best one ended behind
        its estimate, those that are estimated alike may end before it.
        """
        is_over = self._planner.deadline.is_over
        if self._planner.objective is Objective.MEMORY or (self._best is None and not is_over):
            return False
        return estimate > self._least_seconds * (min(AS_FAST / self._error, 1.0) if is_over else AS_ESTIMATED)

    @property
    def _least_seconds(self) -> float:
        return min(self._known_seconds, least_step(self._best))

    @property
    def _is_late(self) -> bool:
        has_to_try = self._is_soft and self._num_tried < _LEAST_TRIED
        return self._planner.deadline.is_over and not has_to_try

    def _has_more_rows_than_fit(self, groups: ReplicaGroups) -> bool:
        """Whether more replicas of as many devices, which have fewer rows each, were too large."""
        return any(len(other[0]) == len(groups[0]) and len(other) > len(groups) for other in self._too_large)

    def _try(self, estimate: float, groups: ReplicaGroups) -> None:
        planner = self._planner
        if len(groups[0]) > 1 and len(planner.machines.devices) > MANY:
            planner = planner.with_share(SHARE_OF_LAYOUT)
        try:
            layout = planner(self._strategy, groups, explains=False, known_seconds=self._least_seconds)
        except UsageError:  # more devices than parts, say
            return
        except InfeasibleError:
            self._too_large.append(groups)
            return
        except TimeLimitError:
            self._num_late += 1
            return
        self._num_tried += 1
        objective = planner.objective
        if self._best is None or objective_key(layout, objective) < objective_key(self._best, objective):
            self._best = layout
            self._error = min(max(1.0, layout.step_seconds / estimate), AS_ESTIMATED) if estimate else 1.0

    def _too_large_by_least(self) -> Family | None:
        """What would be best with unlimited memory, of what has room for variables."""
        too_large = [groups for groups in self._too_large if groups in self._possible]
        if not too_large or self._planner.deadline.is_over:
            return None
        first = min(too_large, key=self._planner.promised_seconds)
        try:
            layout = self._planner.unlimited()(self._strategy, first, explains=False)
        except (InfeasibleError, TimeLimitError):  # memory is not the cause: constraints or coupled ops forbid it
            return None
        return Family(strategy=self._strategy, layout=layout, fits=False)
