"""Find the best placement among simple placements, the solver's and their neighbours, all evaluated by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import contains
from typing import Any

import networkx as nx

from partitioner.constraints.conflicts import overfull, refuse_contradictions
from partitioner.deadline import (
    LEAST_SOLVE_SECONDS,
    LOCAL_SEARCH_OPS_PER_SECOND,
    MAX_LOCAL_SEARCH_OPS,
    SHARE_AS_ONE_GRAPH,
    SHARE_OF_FIRST_SOLVE,
    SHARE_OF_PIPELINES,
    Deadline,
)
from partitioner.errors import InfeasibleError, TimeLimitError, UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.op_graph import Phase
from partitioner.ir.plan import Baseline, Objective, SolverInfo, Strategy
from partitioner.ir.problem import PlacementProblem
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.layouts.execution_selector import ExecutionSelector
from partitioner.planner.layouts.one_device import is_kept, note_on_kept
from partitioner.planner.layouts.result import MemoryShortfall, OutOfMemoryError, SearchResult, with_bounds
from partitioner.planner.layouts.search_progress import SILENT, SearchProgress
from partitioner.planner.model.assignment import Assignment, adjacent_items
from partitioner.planner.model.coarsen import MAX_STAGE_ITEMS, coarsen
from partitioner.planner.model.item_bytes import item_bytes, variable_item_bytes
from partitioner.planner.model.tolerances import AS_FAST, BALANCE_PERMILLE, PEAK_ROOM, ROUNDING
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search_space import PipelineCandidate, PipelineSearchSpace
from partitioner.planner.placement import baselines
from partitioner.planner.placement.evaluator import Evaluation, PlacementEvaluator
from partitioner.planner.placement.local_search import local_search
from partitioner.planner.placement.problem import placement_problem
from partitioner.planner.placement.solve.client import SolveResult, solve
from partitioner.spelling import argument, listed

_MEMORY_ONLY_PERMILLE = 10**6
_MEMORY_ROUNDS = 4


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
    explains: bool = True,
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
        explains: Whether to look for changes that help where nothing fits; that can take as long as the search.
        progress: Told of better placements.

    Raises:
        InfeasibleError: No placement fits, with the bytes needed and available and what would help; or constraints
            contradict each other or the strategy.
        TimeLimitError: No placement that fits was found in time.
        UsageError: A layer split has fewer parts than devices.
    """
    deadline = deadline or Deadline.after(time_limit_seconds)
    return _Search(
        costed, strategy, objective, constraints, time_limit_seconds, deadline, seed, search_space, explains, progress
    ).run()


class _Search:
    def __init__(
        self,
        costed: CostedGraph,
        strategy: Strategy,
        objective: Objective,
        constraints: Sequence[ResolvedConstraint],
        time_limit_seconds: float,
        deadline: Deadline,
        seed: int,
        search_space: PipelineSearchSpace | None,
        explains: bool,
        progress: SearchProgress,
    ) -> None:
        self.explains, self.progress = explains, progress
        self.costed, self.strategy, self.objective = costed, strategy, objective
        self.time_limit_seconds, self.deadline, self.seed = time_limit_seconds, deadline, seed
        self.unpipelined_deadline = deadline
        self.devices = costed.topology.devices
        self.coarsening = coarsen(costed, constraints=constraints)
        self._refuse_other_strategy(constraints)
        self.evaluator = PlacementEvaluator(costed, self.coarsening, delays=objective is not Objective.MEMORY)
        self.selector = ExecutionSelector(
            costed=costed,
            search_space=search_space,
            strategy=strategy,
            objective=objective,
            deadline=deadline,
            evaluator=self._pipeline_evaluator(search_space, constraints) if search_space else None,
        )

    def _pipeline_evaluator(
        self, search_space: PipelineSearchSpace, constraints: Sequence[ResolvedConstraint]
    ) -> PipelineEvaluator:
        """Stages are cut between more items than the solver can place."""
        items = self.coarsening
        if not items.is_lossless:
            items = coarsen(self.costed, MAX_STAGE_ITEMS, constraints)
        return PipelineEvaluator(self.costed, items, search_space)

    def run(self) -> SearchResult:
        num_items = len(self.coarsening.items)
        if self.strategy is Strategy.LAYER_SPLIT and num_items < len(self.devices):
            raise UsageError(
                f"the model has {num_items} parts that can be placed, fewer than {len(self.devices)} devices",
                help=f"give at most {num_items} devices",
            )
        if self._is_too_large() or (not self.explains and self._promises_no_fit()):
            raise self._out_of_memory()
        compared = self._compared()
        starts = self._starts()
        if self.selector.pipelines_help(self._eligible()) and not self._is_proved():
            replace(self.selector, deadline=self.deadline.at_share(SHARE_OF_PIPELINES)).search(self._eligible())
            self.unpipelined_deadline = self.deadline.at_share(SHARE_AS_ONE_GRAPH)
            self._tell()
        seconds, status, note, kept_note = 0.0, "optimal", "", ""
        if self.selector.allows_unpipelined and not self._is_settled() and not self._is_too_large_in_one_piece():
            starts += self._closest_to_the_bound()
            self._evaluate_until_one_fits(starts)
            for result in self._answers(starts):
                seconds += result.solution.seconds
                status, note = result.solution.status, result.note
                if result.solution.assignment is not None:
                    starts.append(result.solution.assignment)
                    self._search_fitting(result.solution.assignment)
                self._tell()
            self._improve_unpipelined(starts)
            self._tell()
        if self.selector.pipelines_help(self._eligible()) and not self._is_proved():
            simulated = [evaluation.assignment for evaluation in sorted(self._unpipelined(), key=self._objective_key)]
            placements = [self.evaluator.placement(one) for one in dict.fromkeys([*simulated, *starts])]
            self.selector.improve(self._eligible(), placements)
        unpipelined = None
        if self._eligible():
            chosen = self._in_order(self._choose(list(compared.values())))
            unpipelined, _ = self.evaluator.in_both_orders(chosen.assignment)
        candidate = self.selector.best(unpipelined)
        if unpipelined is None and candidate is None:
            raise self._nothing_fits(status)
        step = candidate.staged.step_seconds if candidate else unpipelined.step_seconds if unpipelined else 0.0
        if (alone := self._alone()) and is_kept(alone.step_seconds, step, self.objective):
            used = set((candidate or unpipelined or alone).assignment)
            kept_note = note_on_kept(alone.step_seconds, step, len(used))
            unpipelined, candidate, step = alone, None, alone.step_seconds
        solver = with_bounds(
            SolverInfo(status="feasible", objective=step, lower_bound=0.0, gap=1.0, seconds=seconds, seed=self.seed),
            step,
            lower_bound=self.selector.bound_seconds(self._eligible()),
            family_lower_bound=self.selector.family_bound_seconds(self._eligible()),
            family=self.selector.family(self._eligible()),
        )
        if solver.gap <= ROUNDING or self._is_late(status):
            solver = replace(solver, status="optimal" if solver.gap <= ROUNDING else "time-limit")
        self.progress.found(step, solver.lower_bound)
        return SearchResult(
            **(_in_stages(candidate) if candidate else self._as_one_graph(unpipelined)),
            coarsening=self.coarsening,
            baselines=tuple(
                Baseline(name=name, step_seconds=evaluation.step_seconds, fits=evaluation.fits)
                for name, evaluation in compared.items()
            ),
            solver=solver,
            notes=tuple(filter(None, (note, kept_note, self._coarsening_note(), self._relocation_note(candidate)))),
            considered=self.selector.considered(self._unpipelined(), candidate or unpipelined),
        )

    def _alone(self) -> Evaluation | None:
        """The best placement on one device, where more devices were a free choice."""
        if self.strategy is not Strategy.AUTO or self.selector.is_of_replica:
            return None
        alone = [evaluation for evaluation in self._eligible() if len(set(evaluation.assignment)) == 1]
        return min(alone, key=self._objective_key, default=None)

    def _tell(self) -> None:
        steps = [evaluation.step_seconds for evaluation in self._eligible()]
        steps += [candidate.staged.step_seconds for candidate in self.selector.fitting()]
        if steps:
            self.progress.found(min(steps))

    def _is_late(self, status: str) -> bool:
        """Whether the solver or the search ran out of time."""
        return status == "time-limit" or self.deadline.is_over

    def _as_one_graph(self, unpipelined: Evaluation | None) -> dict[str, Any]:
        assert unpipelined is not None
        return {
            "placement": self.evaluator.placement(unpipelined.assignment),
            "schedule": self.evaluator.schedule(unpipelined.assignment, unpipelined.delays),
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

    def _refuse_other_strategy(self, constraints: Sequence[ResolvedConstraint]) -> None:
        """Refuse constraints that contradict the strategy: all ops on one device, or some ops on each.

        Raises:
            InfeasibleError: Naming them.
        """
        names = [placed.name for placed in self.devices]
        if self.strategy is Strategy.SINGLE:
            whole = ResolvedConstraint(text="strategy single", ops=tuple(self.coarsening.item_of), together=True)
            graph = self.costed.graph
            refuse_contradictions(
                self.coarsening.item_of, [whole, *constraints], names, title=lambda name: graph.op[name].title
            )
        if self.strategy is Strategy.LAYER_SPLIT and (idle := self._unmatched_devices()):
            raise InfeasibleError(
                f"the strategy layer-split uses every device, but these parts cannot use {', '.join(idle)}",
                notes=[constraint.text for constraint in constraints],
                help=f"leave out one of them, name fewer devices, or {argument('strategy', 'auto')}",
            )

    def _unmatched_devices(self) -> list[str]:
        """Devices left without an item in a maximum matching; none if there are fewer items than devices."""
        count = len(self.devices)
        if len(self.coarsening.items) < count:
            return []
        offers = nx.Graph(((item, f"{d}") for item, places in enumerate(self.coarsening.allowed) for d in places))
        used = nx.bipartite.maximum_matching(offers, top_nodes=[n for n in offers if isinstance(n, int)])
        return [short_name(placed.name) for index, placed in enumerate(self.devices) if f"{index}" not in used]

    def _baselines(self) -> dict[str, Assignment]:
        """Simple placements that a plan is compared with, by name; they ignore constraints and memory."""
        count = len(self.devices)
        assignments = {
            f"single-device {short_name(self.devices[d].name)}": baselines.single_device(self.coarsening, d)
            for d in self._distinct_devices()
        }
        if count > 1:
            assignments["equal-layers"] = baselines.equal_layers(self.coarsening, count)
            assignments["greedy-by-bytes"] = baselines.greedy_by_bytes(self.costed, self.coarsening, count)
        return assignments

    def _compared(self) -> dict[str, Evaluation]:
        """The baselines as whoever places layers by hand runs them; none for the step of one replica of several."""
        if self.selector.is_of_replica:
            return {}
        return {name: self.evaluator.in_both_orders(assignment)[1] for name, assignment in self._baselines().items()}

    def _distinct_devices(self) -> list[int]:
        """One device of each kind: identical devices give identical baselines, unless their constraints differ."""
        kinds: dict[object, int] = {}
        for index, placed in enumerate(self.devices):
            barred = frozenset(item for item, places in enumerate(self.coarsening.allowed) if index not in places)
            kinds.setdefault((placed.device.name, placed.memory_bytes, barred), index)
        return list(kinds.values())

    def _starts(self) -> list[Assignment]:
        """Placements that obey the constraints, as starts for the solver and the local search."""
        consecutive = [
            baselines.balanced_compute(self.costed, self.coarsening, count) for count in range(2, len(self.devices) + 1)
        ]
        made = [self._repaired(start) for start in [*self._baselines().values(), *consecutive]]
        return list(dict.fromkeys(made))

    def _closest_to_the_bound(self) -> list[Assignment]:
        placements = self.selector.closest_in_one_piece()
        items = self.coarsening.items
        return [self._repaired(tuple(placement[ops[0]] for ops in items)) for placement in placements]

    def _repaired(self, assignment: Assignment) -> Assignment:
        places = self.coarsening.allowed
        return tuple(device if device in places[item] else min(places[item]) for item, device in enumerate(assignment))

    def _is_allowed(self, assignment: Assignment) -> bool:
        num_used = len(set(assignment))
        allowed = {
            Strategy.SINGLE: num_used == 1,
            Strategy.LAYER_SPLIT: num_used == len(self.devices),
            Strategy.AUTO: True,
        }[self.strategy]
        return allowed and all(map(contains, self.coarsening.allowed, assignment))

    def _unpipelined(self) -> list[Evaluation]:
        """Evaluated placements that may run as one graph, if they fit."""
        if not self.selector.allows_unpipelined:
            return []
        evaluations = self.evaluator.evaluations.values()
        return [evaluation for evaluation in evaluations if self._is_allowed(evaluation.assignment)]

    def _eligible(self) -> list[Evaluation]:
        return [evaluation for evaluation in self._unpipelined() if evaluation.fits]

    def _is_settled(self) -> bool:
        """Whether a simple placement is already proved optimal, so that no search is needed."""
        if self.strategy is Strategy.SINGLE or len(self.devices) == 1:
            return True
        return self._is_proved()

    def _is_proved(self) -> bool:
        return self.objective is not Objective.MEMORY and self.selector.is_proved_optimal(self._eligible())

    def _objective_key(self, evaluation: Evaluation) -> tuple[float, ...]:
        if self.objective is Objective.MEMORY:
            return (evaluation.over_bytes, evaluation.largest_peak_bytes, evaluation.step_seconds)
        return (evaluation.over_bytes, evaluation.step_seconds, evaluation.largest_peak_bytes)

    def _choose(self, compared: Sequence[Evaluation]) -> Evaluation:
        """The best evaluation.

        For throughput: of the placements within the tolerance of the fastest, and no slower than any baseline that
        fits, those whose largest peak is close to the least; of these, the placement that sends the fewest bytes.
        """
        eligible = self._eligible()
        if self.objective is Objective.MEMORY:
            return min(eligible, key=self._objective_key)
        limit = min(evaluation.step_seconds for evaluation in eligible) * AS_FAST
        kept = [self.evaluator(baseline.assignment) for baseline in compared]  # in the better order
        limit = min([limit, *(evaluation.step_seconds for evaluation in kept if evaluation in eligible)])
        as_fast = [evaluation for evaluation in eligible if evaluation.step_seconds <= limit]
        room_bytes = min(evaluation.largest_peak_bytes for evaluation in as_fast) * PEAK_ROOM

        def sent(evaluation: Evaluation) -> tuple[float, ...]:
            if not (
                evaluation.fits and evaluation.step_seconds <= limit and evaluation.largest_peak_bytes <= room_bytes
            ):
                return (float("inf"),)
            return (evaluation.sent_bytes, evaluation.largest_peak_bytes, evaluation.step_seconds)

        return self.evaluator(self._local_search(min(as_fast, key=sent).assignment, sent, share=0.5))

    def _in_order(self, evaluation: Evaluation) -> Evaluation:
        """The placement with devices renamed in the order in which layers use them, where that changes no figure."""
        item_of = self.coarsening.item_of
        forward = [op for op in self.costed.graph.ops if op.phase is Phase.FORWARD and op.layer]
        layers = [evaluation.assignment[item_of[op.name]] for op in forward]
        reached = dict.fromkeys([*layers, *evaluation.assignment, *range(len(self.devices))])
        name = {device: index for index, device in enumerate(reached)}
        renamed = self.evaluator([name[device] for device in evaluation.assignment])
        same = self._is_allowed(renamed.assignment) and self._objective_key(renamed) == self._objective_key(evaluation)
        return renamed if same else evaluation

    def _improve_unpipelined(self, starts: Sequence[Assignment]) -> None:
        """Local search from every start, the best first, each with an equal share of the allowance.

        With no time left, starts are evaluated until a placement fits.
        """
        allowed = []
        for start in filter(self._is_allowed, dict.fromkeys(starts)):
            if not self.unpipelined_deadline.is_over or not self._eligible():
                allowed.append(self.evaluator(start))
        for evaluation in sorted(allowed, key=self._objective_key):
            self._local_search(evaluation.assignment, self._objective_key, share=1 / len(allowed))

    def _evaluate_until_one_fits(self, starts: Sequence[Assignment]) -> None:
        """Evaluate starts, those on few devices first: where memory is short, the solver may take all the time."""
        for start in sorted(filter(self._is_allowed, starts), key=lambda start: len(set(start))):
            if self.unpipelined_deadline.is_over or self.evaluator(start).fits:
                return

    def _search_fitting(self, start: Assignment) -> None:
        """Local search from a placement until some placement fits, unless one fits already."""

        def over(evaluation: Evaluation) -> tuple[float, ...] | None:
            return None if self._eligible() else (evaluation.over_bytes, evaluation.largest_peak_bytes)

        self._local_search(start, over, share=1 / (1 + _MEMORY_ROUNDS))

    def _local_search(
        self, start: Assignment, objective_key: Callable[[Evaluation], tuple[float, ...] | None], *, share: float
    ) -> Assignment:
        """Improve a placement while this share of the allowance lasts; the evaluator keeps all evaluations."""
        num_ops = min(MAX_LOCAL_SEARCH_OPS, int(LOCAL_SEARCH_OPS_PER_SECOND * self.time_limit_seconds)) * share
        evaluations = self.evaluator.evaluations
        most = len(evaluations) + max(1, int(num_ops / len(self.costed.graph.ops)))

        def key_of(assignment: Assignment) -> tuple[float, ...] | None:
            if not self._is_allowed(assignment):
                return (float("inf"),)
            if assignment not in evaluations and (len(evaluations) >= most or self.unpipelined_deadline.is_over):
                return None
            return objective_key(self.evaluator(assignment))

        adjacent = adjacent_items(self.costed, self.coarsening)
        return local_search(start, adjacent=adjacent, num_devices=len(self.devices), objective_key=key_of)

    def _answers(self, hints: Sequence[Assignment]) -> Iterator[SolveResult]:
        """The solver's answers, until one fits.

        Where the simulated peak of an answer passes a limit, the problem is solved again with that much less capacity.
        Where the problem is infeasible, it is solved again without the bytes that need not be held at the same time.
        """
        problem = placement_problem(
            self.costed,
            self.coarsening,
            capacities_bytes=[placed.memory_bytes for placed in self.devices],
            use_every_device=self.strategy is Strategy.LAYER_SPLIT,
            balance_permille=(_MEMORY_ONLY_PERMILLE if self.objective is Objective.MEMORY else BALANCE_PERMILLE),
            hints=hints,
            time_limit_seconds=self.time_limit_seconds,
            seed=self.seed,
        )
        seconds_left = min(self.time_limit_seconds * SHARE_OF_FIRST_SOLVE, self.unpipelined_deadline.seconds_left)
        spent, other = 0.0, problem
        for _ in range(0 if self.unpipelined_deadline.is_over else 1 + _MEMORY_ROUNDS):
            problem = replace(other, time_limit_seconds=max(seconds_left, LEAST_SOLVE_SECONDS))
            result = solve(problem)
            yield result
            spent += result.solution.seconds
            again = problem if result.solution.status == "time-limit" else None
            other = self._relaxed(problem, result) or self._tighter(problem, result) or again
            seconds_left = min(self.time_limit_seconds - spent, self.unpipelined_deadline.seconds_left)
            if other is None or seconds_left <= 0:
                return

    def _relaxed(self, problem: PlacementProblem, result: SolveResult) -> PlacementProblem | None:
        """The problem with the least bytes that each item needs, where all that items keep does not fit."""
        least = item_bytes(self.costed, self.coarsening, at_least=True)
        items = tuple(replace(i, memory_bytes=size) for i, size in zip(problem.items, least, strict=True))
        if result.solution.status != "infeasible" or items == problem.items:
            return None
        return replace(problem, items=items)

    def _tighter(self, problem: PlacementProblem, result: SolveResult) -> PlacementProblem | None:
        """The problem with less capacity where the simulated peak passed the limit; None where the answer fits."""
        assignment = result.solution.assignment
        if assignment is None or (evaluation := self.evaluator(assignment)).fits:
            return None
        over = self.evaluator.over_bytes(self.evaluator.schedule(assignment, evaluation.delays))
        used = [0] * len(self.devices)
        for item, device in zip(problem.items, assignment, strict=True):
            used[device] += item.memory_bytes
        devices = tuple(
            replace(device, capacity_bytes=max(0, used[index] - extra)) if extra else device
            for index, (device, extra) in enumerate(zip(problem.devices, over, strict=True))
        )
        return replace(problem, devices=devices)

    def _nothing_fits(self, status: str) -> Exception:
        if (refusal := self.selector.refusal()) is not None:
            return refusal
        if self._is_late(status):
            return TimeLimitError(
                f"no placement that fits was found within {self.time_limit_seconds:g} s",
                help=argument("time_limit", 2 * self.time_limit_seconds),
            )
        return self._out_of_memory(self.selector.fitting_arguments)

    def _is_too_large(self) -> bool:
        """Whether the variables alone do not fit, in any placement and any pipeline."""
        sizes = variable_item_bytes(self.costed, self.coarsening)
        room = [placed.memory_bytes for placed in self.devices]
        return overfull(sizes, self.coarsening.allowed, room) is not None

    def _promises_no_fit(self) -> bool:
        """Whether no pipeline is estimated to fit, and nothing else does."""
        return self._is_too_large_in_one_piece() and not self.selector.has_fitting_cut()

    def _is_too_large_in_one_piece(self) -> bool:
        """Whether what a step keeps of the whole batch does not fit, in any placement."""
        room = [placed.memory_bytes for placed in self.devices]
        sizes = item_bytes(self.costed, self.coarsening, at_least=True)
        return overfull(sizes, self.coarsening.allowed, room) is not None

    def _out_of_memory(self, *alternatives: Callable[[], str]) -> OutOfMemoryError:
        """The error that nothing fits, with its facts and the arguments that each of `alternatives` returns."""
        if not self.explains:
            return OutOfMemoryError("no placement fits")
        for assignment in self._baselines().values():  # replicas have not evaluated them yet
            self.evaluator(assignment)
        evaluations = self.evaluator.evaluations.values()
        allowed = [evaluation for evaluation in evaluations if self._is_allowed(evaluation.assignment)]
        closest = sorted(allowed, key=lambda evaluation: evaluation.over_bytes)[:4]
        helps = [alternative() for alternative in alternatives]
        if self.strategy is not Strategy.AUTO and any(evaluation.fits for evaluation in evaluations):
            helps.append(argument("strategy", "auto"))
        return OutOfMemoryError(
            "the model does not fit on the given devices",
            MemoryShortfall(
                costed=self.costed,
                coarsening=self.coarsening,
                attempts=[self.evaluator.placement(evaluation.assignment) for evaluation in closest],
                alternatives=tuple(filter(None, helps)),
            ),
        )


def _in_stages(candidate: PipelineCandidate) -> dict[str, Any]:
    return {
        "placement": candidate.placement,
        "schedule": candidate.staged.schedule,
        "num_microbatches": candidate.num_microbatches,
        "schedule_kind": candidate.schedule.value,
        "recompute": candidate.recompute,
        "staged": candidate.staged,
        "programs": candidate.programs,
    }
