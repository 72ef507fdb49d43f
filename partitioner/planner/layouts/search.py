"""Choose how one replica runs: the better of the step as one graph, and of the step in stages and microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partitioner.deadline import SHARE_AS_ONE_GRAPH, SHARE_OF_PIPELINES, Deadline
from partitioner.errors import InfeasibleError, TimeLimitError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Baseline, Objective, SolverInfo, Strategy
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.ir.units import format_bytes, plural
from partitioner.planner.layouts.execution_selector import ExecutionSelector
from partitioner.planner.layouts.one_device import is_kept, note_on_kept
from partitioner.planner.layouts.result import (
    MemoryShortfall,
    OutOfMemoryError,
    SearchResult,
    with_bounds,
)
from partitioner.planner.layouts.search_progress import SILENT, SearchProgress
from partitioner.planner.layouts.step_items import StepItems
from partitioner.planner.layouts.strategy_refusals import refuse_impossible
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.tolerances import ROUNDING, SLIGHTLY
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import PipelineCandidate, PipelineSearchSpace
from partitioner.planner.placement.evaluator import Evaluation, PlacementEvaluator
from partitioner.planner.placement.search import PlacementSearch, SolverSummary
from partitioner.spelling import argument, listed

# Placements that the error names where nothing fits.
_CLOSEST = 4
# What helps a search that its limit did not end: so many times the limit, of which the solver had a share.
_LONGER = 10


def search(
    costed: CostedGraph,
    *,
    strategy: Strategy,
    objective: Objective = Objective.THROUGHPUT,
    constraints: Sequence[ResolvedConstraint] = (),
    time_limit_seconds: float = 60.0,
    deadline: Deadline | None = None,
    seed: int = 0,
    search_space: PipelineSearchSpace | None = None,
    items: StepItems | None = None,
    evaluator: PipelineEvaluator | None = None,
    explains: bool = True,
    compares: bool = True,
    progress: SearchProgress = SILENT,
) -> SearchResult:
    """Choose a device for every op, and how the step runs on them.

    Args:
        costed: The graph, its costs and its topology (which holds the memory limits).
        strategy: `single`; `layer-split`, which uses every device; or `auto`, which uses as many as pay.
        objective: `throughput` minimises the step, `memory` the largest peak.
        constraints: Allowed devices and colocations of ops.
        time_limit_seconds: For the search. Unless the deadline ends it early, the placements that are evaluated depend
            on this limit only, not on the machine.
        deadline: When the search ends with its incumbent; the end of the time limit, unless given.
        seed: For the solver.
        search_space: Microbatches, schedules and recompute to choose from; without it the step runs as one graph.
        items: The items of the step, where they are known from another layout.
        evaluator: Of the search space, where it has made estimates of pipelines of these items.
        explains: Whether to look for changes that help where nothing fits; that can take as long as the search.
        compares: Whether to evaluate baselines though none can fit, to list them.
        progress: Told of better placements.

    Raises:
        InfeasibleError: No placement fits, with the bytes needed and available and what would help; or constraints
            contradict each other or the strategy.
        TimeLimitError: No placement that fits was found in time.
        UsageError: A layer split has fewer parts than devices.
    """
    deadline = deadline or Deadline.after(time_limit_seconds)
    items = items or StepItems.of(costed, constraints)
    refuse_impossible(costed, items.coarse, strategy, constraints)
    evaluator = evaluator or (
        PipelineEvaluator(costed, items.fine, search_space, items.in_order) if search_space else None
    )
    return _Search(
        costed, strategy, objective, items, time_limit_seconds, deadline, seed, evaluator, explains, compares, progress
    ).run()


class _Search:
    def __init__(
        self,
        costed: CostedGraph,
        strategy: Strategy,
        objective: Objective,
        items: StepItems,
        time_limit_seconds: float,
        deadline: Deadline,
        seed: int,
        evaluator: PipelineEvaluator | None,
        explains: bool,
        compares: bool,
        progress: SearchProgress,
    ) -> None:
        self.explains, self.compares, self.progress = explains, compares, progress
        self.costed, self.strategy, self.objective = costed, strategy, objective
        search_space = evaluator.search_space if evaluator else None
        self.time_limit_seconds, self.deadline, self.seed = time_limit_seconds, deadline, seed
        self.devices = costed.topology.devices
        self.stage_items, self.coarsening = items.fine, items.coarse
        self.evaluator = PlacementEvaluator(costed, self.coarsening, delays=objective is not Objective.MEMORY)
        self.placements = PlacementSearch(
            costed=costed,
            coarsening=self.coarsening,
            evaluator=self.evaluator,
            strategy=strategy,
            objective=objective,
            time_limit_seconds=time_limit_seconds,
            deadline=deadline,
            seed=seed,
            known_seconds=search_space.known_seconds if search_space else math.inf,
        )
        self.selector = ExecutionSelector(
            costed=costed,
            search_space=search_space,
            strategy=strategy,
            objective=objective,
            deadline=deadline,
            evaluator=evaluator,
            step_of=self._step_of if self._is_symmetric else None,
        )
        finer = PlacementEvaluator(costed, self.stage_items, delays=objective is not Objective.MEMORY)
        self.cuts = replace(self.placements, coarsening=self.stage_items, evaluator=finer)

    def run(self) -> SearchResult:
        if self.placements.has_variables_too_large or (not self.explains and self._promises_no_fit()):
            raise self._out_of_memory()
        compared = self._compared()
        solved = self._searched()
        unpipelined = None
        if self._fitting():
            unpipelined = self._best_as_one_graph(list(compared.values()))
        candidate = self.selector.best(unpipelined)
        if unpipelined is None and candidate is None:
            raise self._nothing_fits(solved.status)
        step = candidate.staged.step_seconds if candidate else unpipelined.step_seconds if unpipelined else 0.0
        kept_note = ""
        if (alone := self._alone()) and is_kept(alone.step_seconds, step, self.objective):
            used = set((candidate or unpipelined or alone).assignment)
            kept_note = note_on_kept(alone.step_seconds, step, len(used))
            unpipelined, candidate, step = alone, None, alone.step_seconds
        solver = self._bounded(step, solved)
        self.progress.found(step, solver.lower_bound)
        notes = (solved.note, kept_note, self._coarsening_note(), self._relocation_note(candidate))
        return SearchResult(
            **(_in_stages(candidate) if candidate else self._as_one_graph(unpipelined)),
            coarsening=self.coarsening,
            baselines=tuple(
                Baseline(name=name, step_seconds=evaluation.step_seconds, fits=evaluation.fits)
                for name, evaluation in compared.items()
            ),
            solver=solver,
            notes=tuple(filter(None, notes)),
            considered=self.selector.considered(self._as_one_graph_may(), candidate or unpipelined),
        )

    def _searched(self) -> SolverSummary:
        """Search pipelines, then placements as one graph if these can be faster, then pipelines like these.

        Ends where the best is proved.
        """
        placements, starts, solved = self.placements, self.placements.starts(), SolverSummary()
        if self.selector.pipelines_help(self._fitting()) and not self._is_proved():
            replace(self.selector, deadline=self.deadline.at_share(SHARE_OF_PIPELINES)).search(self._fitting())
            placements = replace(placements, deadline=self.deadline.at_share(SHARE_AS_ONE_GRAPH))
            self._tell()
        is_refuted = self.selector.is_refuted_unpipelined
        if not (is_refuted or self._is_settled() or placements.is_too_large) and self.selector.allows_unpipelined:
            closest = self.selector.closest_in_one_piece()
            self._improve_cuts(closest)
            starts += placements.repaired(_assignments(closest, self.coarsening))
            solved = placements.run(starts, self._tell)
            best = min(self._fitting(), key=placements.objective_key, default=None)
            self._improve_cuts([best.placement] if best else [])
        if self.selector.pipelines_help(self._fitting()) and not self._is_proved():
            simulated = sorted(self._as_one_graph_may(), key=placements.objective_key)
            given = [made.placement for made in simulated]
            given += map(self.coarsening.placement, [*starts, *solved.answers])
            self.selector.improve(self._fitting(), [] if is_refuted else given)
        self.placements = placements
        return solved

    def _bounded(self, step_seconds: float, solved: SolverSummary) -> SolverInfo:
        """The plan's entry for the solver, with both bounds."""
        fitting = self._fitting()
        solver = with_bounds(
            SolverInfo(
                status="feasible",
                objective=step_seconds,
                lower_bound=0.0,
                gap=1.0,
                seconds=solved.seconds,
                seed=self.seed,
            ),
            step_seconds,
            lower_bound=self.selector.bound_seconds(fitting),
            family_lower_bound=self.selector.family_bound_seconds(fitting),
            family=self.selector.family(fitting),
        )
        if solver.gap <= ROUNDING:
            return replace(solver, status="optimal")
        return replace(solver, status="time-limit") if self._is_late(solved.status) else solver

    def _as_one_graph_may(self) -> list[Evaluation]:
        """Evaluated placements that may run as one graph, if they fit."""
        if not self.selector.allows_unpipelined:
            return []
        return [*self.placements.evaluations, *self.cuts.evaluations]

    def _fitting(self) -> list[Evaluation]:
        return [evaluation for evaluation in self._as_one_graph_may() if evaluation.fits]

    def _alone(self) -> Evaluation | None:
        """The best placement on one device, where more devices were a free choice."""
        if self.strategy is not Strategy.AUTO or self.selector.is_of_replica:
            return None
        alone = [evaluation for evaluation in self._fitting() if len(set(evaluation.assignment)) == 1]
        return min(alone, key=self.placements.objective_key, default=None)

    def _improve_cuts(self, cuts: Sequence[Mapping[str, int]]) -> None:
        """Move the ends of the parts of placements by single layers, while there is time."""
        if cuts and self.objective is not Objective.MEMORY and not self.deadline.is_over:
            self.cuts.improve_cuts(_assignments(cuts, self.stage_items), self.selector.order)
            self._tell()

    @property
    def _is_symmetric(self) -> bool:
        """Whether there are two devices, and it makes no difference which of them has a part."""
        topology = self.costed.topology
        return (
            len(topology.devices) == 2
            and len(set(self.costed.alike)) == 1
            and topology.link(0, 1) == topology.link(1, 0)
            and self.devices[0].memory_bytes == self.devices[1].memory_bytes
            and all(len(allowed) == 2 for allowed in self.stage_items.allowed)
        )

    def _step_of(self, cut: Assignment) -> float | None:
        """What a cut takes in one piece, in the better order; infinite where it does not fit, None if time is over."""
        if self.deadline.is_over:
            return None
        found, _ = self.cuts.evaluator.in_both_orders(cut)
        return found.step_seconds if found.fits else math.inf

    def _best_as_one_graph(self, compared: Sequence[Evaluation]) -> Evaluation:
        """The best placement that fits; one that cuts layers apart only where it is faster than what does not."""
        cut = min(self.cuts.fitting, key=self.placements.objective_key, default=None)
        if not self.placements.fitting:
            assert cut is not None
            return cut
        found, _ = self.evaluator.in_both_orders(self.placements.best(compared).assignment)
        return cut if cut and cut.step_seconds * SLIGHTLY < found.step_seconds else found

    def _compared(self) -> dict[str, Evaluation]:
        """The baselines as whoever places layers by hand runs them; none for the step of one replica of several."""
        if self.selector.is_of_replica or (self.placements.is_too_large and not self.compares):
            return {}
        return {
            name: self.evaluator.in_both_orders(assignment)[1]
            for name, assignment in self.placements.baselines().items()
        }

    def _tell(self) -> None:
        steps = [evaluation.step_seconds for evaluation in self._fitting()]
        steps += [candidate.staged.step_seconds for candidate in self.selector.fitting()]
        if steps:
            self.progress.found(min(steps))

    def _is_late(self, status: str) -> bool:
        """Whether the solver or the search ran out of time."""
        return status == "time-limit" or self.deadline.is_over

    def _is_settled(self) -> bool:
        """Whether a simple placement is already proved optimal, so that no search is needed."""
        if self.strategy is Strategy.SINGLE or len(self.devices) == 1:
            return True
        return self._is_proved()

    def _is_proved(self) -> bool:
        return self.objective is not Objective.MEMORY and self.selector.is_proved_optimal(self._fitting())

    def _as_one_graph(self, unpipelined: Evaluation | None) -> dict[str, Any]:
        assert unpipelined is not None
        evaluator = self.cuts.evaluator if unpipelined.coarsening is self.stage_items else self.evaluator
        return {
            "placement": unpipelined.placement,
            "schedule": evaluator.schedule(unpipelined.assignment, unpipelined.delays),
            "delays_gradients": unpipelined.delays,
        }

    def _coarsening_note(self) -> str:
        if self.coarsening.is_lossless or len(self.devices) == 1:
            return ""
        count = len(self.coarsening.items)
        return f"light parts were joined to their neighbours, until {count} remained to be placed"

    def _relocation_note(self, candidate: PipelineCandidate | None) -> str:
        """Names the ops that had to leave the devices which constraints allow; empty if there are none."""
        relocated = candidate.programs.relocated if candidate else {}
        allowed, item_of = self.coarsening.allowed, self.coarsening.item_of
        names = [placed.name for placed in self.devices]
        moved = [op for op, device in relocated.items() if names.index(device) not in allowed[item_of[op]]]
        if not moved:
            return ""
        return f"{listed(moved)} run elsewhere than required, so that stages do not wait for each other"

    def _nothing_fits(self, status: str) -> Exception:
        if (refusal := self.selector.refusal()) is not None:
            return refusal
        if self._is_late(status) and not self._promises_no_fit():
            # Nobody set a limit, or it was the solver's share that was over.
            has_ended = self.deadline.is_soft or not self.deadline.is_over
            within = "" if has_ended else f" within {self.time_limit_seconds:g} s"
            return TimeLimitError(
                f"no placement that fits was found{within}",
                notes=[_closest_note(*self.placements.closest(1))] if self.explains else [],
                help=argument("time_limit", (_LONGER if has_ended else 2) * self.time_limit_seconds),
            )
        if (candidate := self.selector.closest_without_sums()) is not None:
            return self._no_room_for_sums(candidate)
        return self._out_of_memory(self.selector.fitting_arguments)

    def _no_room_for_sums(self, candidate: PipelineCandidate) -> InfeasibleError:
        over = zip(self.devices, candidate.over_bytes, candidate.sum_bytes, strict=True)
        return InfeasibleError(
            "there is no room to sum the gradients of all replicas",
            notes=[
                f"{short_name(placed.name)}: {format_bytes(placed.memory_bytes + lacking)} needed, "
                f"{format_bytes(placed.memory_bytes)} to use; {format_bytes(sums)} of it for sums"
                for placed, lacking, sums in over
                if lacking
            ],
            help="fewer replicas of more devices each, or more microbatches",
        )

    def _promises_no_fit(self) -> bool:
        """Whether no pipeline is estimated to fit, and nothing else does."""
        return self.placements.is_too_large and not self.selector.has_fitting_cut()

    def _out_of_memory(self, *alternatives: Callable[[], str]) -> OutOfMemoryError:
        """The error that nothing fits, with its facts and the arguments that each of `alternatives` returns."""
        if not self.explains:
            return OutOfMemoryError("no placement fits")
        closest = self.placements.closest(_CLOSEST)
        helps = [alternative() for alternative in alternatives]
        if self.strategy is not Strategy.AUTO and any(other.fits for other in self.evaluator.evaluations.values()):
            helps.append(argument("strategy", "auto"))
        return OutOfMemoryError(
            "the model does not fit on the given devices",
            MemoryShortfall(
                costed=self.costed,
                coarsening=self.coarsening,
                attempts=[evaluation.placement for evaluation in closest],
                lacking_bytes=self.selector.least_lacking_bytes,
                alternatives=tuple(filter(None, helps)),
            ),
        )


def _assignments(placements: Iterable[Mapping[str, int]], coarsening: Coarsening) -> list[Assignment]:
    """The device of each item, that of its first op."""
    return [tuple(placed[ops[0]] for ops in coarsening.items) for placed in placements]


def _closest_note(closest: Evaluation) -> str:
    peak, over = format_bytes(closest.largest_peak_bytes), format_bytes(closest.over_bytes)
    num_devices = plural(len(set(closest.assignment)), "device")
    return f"closest: {num_devices}, the fullest holds {peak} at its peak; {over} too much, all together"


def _in_stages(candidate: PipelineCandidate) -> dict[str, Any]:
    return {
        "placement": candidate.placement,
        "schedule": candidate.staged.schedule,
        "num_microbatches": candidate.num_microbatches,
        "schedule_kind": candidate.schedule.value,
        "recompute": candidate.programs.recomputed,
        "staged": candidate.staged,
        "programs": candidate.programs,
    }
