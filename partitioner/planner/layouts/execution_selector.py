"""Choose how the step runs, as one graph or as a pipeline, and bound all candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from partitioner.deadline import Deadline
from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Considered, Objective, Strategy
from partitioner.planner.bounds.step_time import lower_bound_seconds
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.tolerances import AS_FAST, PEAK_ROOM, ROUNDING
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.one_piece import OnePieceBound, one_piece_bound
from partitioner.planner.pipeline.search import PipelineSearch
from partitioner.planner.pipeline.search_space import PREFERENCE, PipelineCandidate, PipelineSearchSpace, Recompute
from partitioner.planner.placement.evaluator import Evaluation
from partitioner.spelling import argument, arguments


@dataclass(frozen=True, kw_only=True)
class ExecutionSelector:
    """All candidates for running the step: as one graph, and as pipelines.

    Attributes:
        costed: The graph at the full batch size.
        search_space: The pipelines that may be chosen; None for one graph only.
        strategy: How devices may be used.
        objective: Whether the step time or the largest peak is minimised.
        deadline: When the search ends with its incumbent.
        evaluator: Simulates pipelines; None where only one graph may be chosen.
        step_of: Simulates cuts in two in one piece, as for `one_piece_bound`.
    """

    costed: CostedGraph
    search_space: PipelineSearchSpace | None
    strategy: Strategy
    objective: Objective
    deadline: Deadline
    evaluator: PipelineEvaluator | None = None
    step_of: Callable[[Assignment], float | None] | None = None

    @property
    def allows_unpipelined(self) -> bool:
        """Whether the step may run as one graph."""
        return self.search_space is None or self.search_space.allows_unpipelined

    @property
    def is_refuted_unpipelined(self) -> bool:
        """Whether the step may run as one graph, but no placement of that is as fast as a known pipeline."""
        if not self.allows_unpipelined or self.objective is Objective.MEMORY:
            return False
        steps = [candidate.staged.step_seconds for candidate in self.fitting()]
        return self._unpipelined_bound >= min(steps, default=math.inf)

    @property
    def is_of_replica(self) -> bool:
        """Whether the step is that of one replica of several."""
        return self.search_space is not None and self.search_space.is_of_replica

    def pipelines_help(self, unpipelined: Sequence[Evaluation]) -> bool:
        """Whether there are pipelines, and they can help; on one device they can only save memory."""
        if self.evaluator is None:
            return False
        single = self.strategy is Strategy.SINGLE or len(self.costed.topology.devices) == 1
        is_needless = single and unpipelined and self.objective is not Objective.MEMORY
        return not is_needless and bool(self._stage_search(unpipelined).possible.counts)

    def search(self, unpipelined: Sequence[Evaluation]) -> None:
        """Simulate pipelines; `unpipelined` are placements that may run as one graph."""
        if self.evaluator is not None:
            self._stage_search(unpipelined).run()

    def has_fitting_cut(self) -> bool:
        """Whether a pipeline is estimated to fit."""
        return self.evaluator is not None and self._stage_search(()).has_fitting_cut

    def improve(self, unpipelined: Sequence[Evaluation], given: Sequence[Mapping[str, int]]) -> None:
        """Simulate other placements (device by op) as pipelines, and improve the best."""
        if self.evaluator is not None:
            items = self.evaluator.coarsening.items
            assignments = dict.fromkeys(tuple(placement[ops[0]] for ops in items) for placement in given)
            self._stage_search(unpipelined).improve(list(assignments))

    def bound_seconds(self, unpipelined: Sequence[Evaluation]) -> float:
        """Lower bound on the step of every candidate; `unpipelined` as for `search`."""
        return min(self._bounds(unpipelined))

    def family_bound_seconds(self, unpipelined: Sequence[Evaluation]) -> float | None:
        """Lower bound on the step of every plan of the family; None where there is no search of stages."""
        if self.evaluator is None:
            return None
        bounds = []
        if self.allows_unpipelined:
            bounds.append(self._unpipelined_bound if self.is_refuted_unpipelined else self._one_piece.seconds)
        if self.pipelines_help(unpipelined):
            bounds.append(self._stage_search(unpipelined).least_bound_seconds)
        return min(bounds, default=None)

    def family(self, unpipelined: Sequence[Evaluation]) -> str:
        """The family in words: stages of consecutive parts of the model, and what may be chosen for them."""
        if self.evaluator is None:
            return ""
        parts = f"stages of consecutive parts of the model ({len(self.evaluator.order)} parts)"
        stages = f"{parts}, each waiting for the one before"
        shapes = [*self._stage_search(unpipelined).possible]
        if not self.pipelines_help(unpipelined) or not shapes:
            return f"{stages}; the batch in one piece"
        counts = sorted({shape.num_microbatches for shape in shapes} | ({1} if self.allows_unpipelined else set()))
        schedules = dict.fromkeys(shape.schedule.value for shape in shapes)
        most, least = max(len(set(shape.devices)) for shape in shapes), self.evaluator.search_space.least_devices
        number = f"{least} to {most}" if least > 1 else f"up to {most}"
        rounds = max(len(shape.devices) // len(set(shape.devices)) for shape in shapes)
        of_each = f", up to {rounds} stages on each" if rounds > 2 else ""
        return (
            f"{stages}; {number} devices{of_each}, {', '.join(map(str, counts))} microbatches, the schedules "
            f"{', '.join(schedules)}"
        )

    @property
    def order(self) -> Sequence[int]:
        """The items of stages in forward order."""
        return self.evaluator.order if self.evaluator else ()

    def closest_in_one_piece(self) -> list[Mapping[str, int]]:
        """The placements (device by op) that the bound of the step in one piece refutes last."""
        if self.evaluator is None:
            return []
        return [self.evaluator.coarsening.placement(assignment) for assignment in self._one_piece.closest]

    @cached_property
    def _one_piece(self) -> OnePieceBound:
        assert self.evaluator is not None
        known = self.evaluator.search_space.known_seconds
        known = min([known, *(candidate.staged.step_seconds for candidate in self.fitting())])
        return one_piece_bound(
            self.costed,
            self.evaluator.coarsening,
            self.evaluator.order,
            may_hold=self.evaluator.may_hold,
            known_seconds=math.inf if self.objective is Objective.MEMORY else known,
            is_raised=not self.deadline.is_over,
            step_of=self.step_of,
        )

    def is_proved_optimal(self, unpipelined: Sequence[Evaluation]) -> bool:
        """Whether the best of `unpipelined` is proved optimal: it meets the bound of every candidate."""
        best = min((evaluation.step_seconds for evaluation in unpipelined), default=float("inf"))
        return best < float("inf") and all(best <= bound * (1 + ROUNDING) for bound in self._bounds(unpipelined))

    def _bounds(self, unpipelined: Sequence[Evaluation]) -> Iterator[float]:
        """Bounds for the step as one graph and for each number of microbatches; lazy, as each takes long to compute."""
        counts = self._stage_search(unpipelined).possible.counts if self.pipelines_help(unpipelined) else []
        if self.allows_unpipelined or not counts:
            yield self._unpipelined_bound
        if self.evaluator is not None:
            yield from map(self.evaluator.bound_seconds, counts)

    @cached_property
    def _unpipelined_bound(self) -> float:
        return lower_bound_seconds(self.costed)

    def fitting(self) -> list[PipelineCandidate]:
        """Pipelines that were simulated, fit and may be chosen."""
        return [] if self.evaluator is None else self._stage_search(()).eligible()

    @property
    def least_lacking_bytes(self) -> tuple[int, ...]:
        """What each device lacks in the simulated pipeline whose fullest lacks least; none if none was simulated."""
        candidates = [] if self.evaluator is None else self.evaluator.candidates()
        return min((candidate.over_bytes for candidate in candidates), key=max, default=())

    def closest_without_sums(self) -> PipelineCandidate | None:
        """The pipeline that lacks the fewest bytes of those that fit but for sums of gradients over replicas."""
        candidates = [] if self.evaluator is None else self.evaluator.candidates()
        lacking = [candidate for candidate in candidates if not candidate.fits and candidate.fits_without_sums]
        return min(lacking, key=lambda candidate: sum(candidate.over_bytes), default=None)

    def best(self, unpipelined: Evaluation | None) -> PipelineCandidate | None:
        """The best pipeline; None where the step as one graph, `unpipelined`, is to be preferred."""
        candidates = self.fitting()
        if not candidates:
            return None
        if self.objective is Objective.MEMORY:
            best = min(candidates, key=_peak_and_step)
            is_worse = unpipelined and (unpipelined.largest_peak_bytes, unpipelined.step_seconds) <= _peak_and_step(
                best
            )
            return None if is_worse else best
        steps = [candidate.staged.step_seconds for candidate in candidates]
        limit = min(steps + ([unpipelined.step_seconds] if unpipelined else [])) * AS_FAST
        if unpipelined and unpipelined.step_seconds <= limit:
            return None
        return _simplest([other for other in candidates if other.staged.step_seconds <= limit])

    def considered(
        self, unpipelined: Sequence[Evaluation], chosen: Evaluation | PipelineCandidate | None
    ) -> tuple[Considered, ...]:
        """The best of each number of stages and microbatches, schedule and number of stages that recompute.

        The chosen candidate represents its kind, even where another of that kind is faster within the tolerance.
        """
        if self.evaluator is None:
            return ()
        allowed = self._stage_search(()).is_allowed
        figures = [evaluation.considered for evaluation in unpipelined]
        figures += [candidate.considered for candidate in self.evaluator.candidates() if allowed(candidate.assignment)]
        figures.sort(key=lambda figure: (not figure.fits, figure.step_seconds, figure.largest_peak_bytes))
        best: dict[tuple[int, int, str, int], Considered] = {}
        for figure in [*([chosen.considered] if chosen else []), *figures]:
            kind = (figure.num_stages, figure.num_microbatches, figure.schedule, figure.num_recomputed)
            best.setdefault(kind, figure)
        return tuple(best[key] for key in sorted(best))

    def refusal(self) -> UsageError | None:
        """Why the step cannot run in stages, or in a stage on each device, where the request needs that."""
        if self.search_space is None or self.evaluator is None or self.allows_unpipelined:
            return None
        num_devices, num_parts = len(self.costed.topology.devices), len(self.evaluator.coarsening.items)
        if candidates := self.evaluator.candidates():
            most = max(len(set(candidate.assignment)) for candidate in candidates)
            if self.strategy is not Strategy.LAYER_SPLIT or most == num_devices or self.deadline.is_over:
                return None
            return UsageError(
                f"the step runs in {most} stages at most, fewer than {num_devices} devices",
                notes=[f"{num_parts} parts; what runs backwards goes with what it is the gradient of"],
                help=f"give at most {most} devices (to each replica), or {argument('strategy', 'auto')}",
            )
        if self.evaluator.refusal is not None or self.deadline.is_over:
            return self.evaluator.refusal
        counts = ", ".join(map(str, self.search_space.counts))
        schedules = ", ".join(self.search_space.schedules)
        return UsageError(
            f"a batch of {self.costed.graph.batch_size} rows cannot pass in {counts} microbatches "
            f"with the schedule {schedules}",
            notes=[f"{num_devices} devices, {num_parts} parts"],
            help=arguments(microbatches="auto", schedule="auto"),
        )

    def fitting_arguments(self) -> str:
        """Arguments under which a pipeline would fit; empty where nothing fits."""
        search_space = self.search_space
        if search_space is None or self.evaluator is None:
            return ""
        size = self.costed.graph.batch_size
        more = tuple(2**power for power in range(1, size.bit_length()) if 2**power not in search_space.counts)
        recompute = self.costed.graph.training and search_space.recompute == "none"
        tries: list[tuple[tuple[int, ...], Recompute]] = [
            (more, search_space.recompute),
            (search_space.counts if recompute else (), "auto"),
            (more if recompute else (), "auto"),
        ]
        for counts, how in tries:
            other = replace(search_space, counts=counts, recompute=how)
            selector = replace(self, search_space=other, evaluator=self.evaluator.choosing(other))
            if counts:
                selector.search(())
            if fitting := selector.fitting():
                count = min(candidate.num_microbatches for candidate in fitting)
                changes: dict[str, Any] = {} if count in search_space.counts else {"microbatches": count}
                return arguments(**changes, **({} if how == search_space.recompute else {"recompute": how}))
        return ""

    def _stage_search(self, unpipelined: Sequence[Evaluation]) -> PipelineSearch:
        assert self.evaluator is not None
        return PipelineSearch(
            evaluator=self.evaluator,
            strategy=self.strategy,
            objective=self.objective,
            unpipelined_seconds=min((evaluation.step_seconds for evaluation in unpipelined), default=float("inf")),
            one_device=self._tries_one_device(unpipelined),
            deadline=self.deadline,
        )

    def _tries_one_device(self, unpipelined: Sequence[Evaluation]) -> bool:
        """Whether pipelines on one device are tried: microbatches there only save memory, and cost time."""
        alone = any(len(set(evaluation.assignment)) == 1 for evaluation in unpipelined)
        return self.objective is Objective.MEMORY or not alone


def _peak_and_step(candidate: PipelineCandidate) -> tuple[float, float]:
    return candidate.staged.largest_peak_bytes, candidate.staged.step_seconds


def _simplest(candidates: Sequence[PipelineCandidate]) -> PipelineCandidate:
    """The simplest, or the fastest that runs in the same way and whose peak is close to that one's."""

    def way(one: PipelineCandidate) -> tuple[int, int]:
        return PREFERENCE.index(one.schedule), len(one.programs.recomputed)

    def simplicity(one: PipelineCandidate) -> tuple[float, ...]:
        return one.num_microbatches, one.staged.largest_peak_bytes, *way(one), one.staged.step_seconds

    simplest = min(candidates, key=simplicity)
    room_bytes = PEAK_ROOM * simplest.staged.largest_peak_bytes
    alike = [
        one
        for one in candidates
        if (one.num_microbatches, way(one)) == (simplest.num_microbatches, way(simplest))
        and one.staged.largest_peak_bytes <= room_bytes
    ]
    return min(alike, key=lambda one: one.staged.step_seconds)
