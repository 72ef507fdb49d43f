"""The portfolio: quick starts and bounds first, then search and proof side by side in rounds that grow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from partitioner.ir.max_load import MaxLoadAnswer, MaxLoadProblem
from partitioner.planner.max_load.bounds import quick_bound
from partitioner.planner.max_load.chain import best_chain
from partitioner.planner.max_load.coarsen import coarsen
from partitioner.planner.max_load.contract import without_cycles, without_idle_items
from partitioner.planner.max_load.cp import run_model
from partitioner.planner.max_load.free import FreeModel, in_order
from partitioner.planner.max_load.incumbent import Budget, Incumbent
from partitioner.planner.max_load.neighbourhood import Neighbourhood
from partitioner.planner.max_load.share import raise_by_counts, raise_by_items, raise_by_shares
from partitioner.planner.max_load.stages import StageModel
from partitioner.planner.max_load.start import first_fit

_WORK_PER_SECOND = 0.4
"""Work granted to each of the two threads per second of the time limit, in CP-SAT's deterministic units.

A quiet machine does 0.3 to 0.55 in a second, so where it is quiet it is mostly the work that ends a run.
"""

_COARSE = (40, 70, 110)
_FIRST_ROUND = 1.0
_STEP_WORK = 0.5


def solve_in_process(problem: MaxLoadProblem, report: Callable[[MaxLoadAnswer], None]) -> MaxLoadAnswer:
    """Solve a problem in this process, which must not have imported TensorFlow.

    Args:
        problem: What to solve, within its time limit.
        report: Is told whenever the best assignment or the bound improves.
    """
    acyclic = without_cycles(problem) if problem.contiguous else None
    small = without_idle_items(acyclic.problem if acyclic else problem)

    def lifted(answer: MaxLoadAnswer) -> MaxLoadAnswer:
        if answer.assignment is None:
            return answer
        assignment = small.lift(answer.assignment)
        return replace(answer, assignment=acyclic.lift(assignment) if acyclic else assignment)

    incumbent = Incumbent(small.problem, lambda answer: report(lifted(answer)))
    solve = _contiguous if problem.contiguous else _free
    solve(small.problem, incumbent)
    return lifted(incumbent.answer)


def _contiguous(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    budget = _budget(problem)
    incumbent.offer(best_chain(problem), "intervals of a row")
    incumbent.raise_bound(quick_bound(problem))
    raise_by_items(problem, incumbent)
    if incumbent.is_settled:
        return
    model = StageModel(problem, incumbent.lower_bound, _upper_bound(problem, incumbent))
    if incumbent.assignment is not None:
        model.hint(incumbent.assignment)
    run_model(model, incumbent, budget, work=budget.work, seed=problem.seed, method="CP-SAT over stages", workers=2)


def _free(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    incumbent.offer(first_fit(problem), "first fit")
    incumbent.raise_bound(quick_bound(problem))
    raise_by_items(problem, incumbent)
    search, proof = _budget(problem), _budget(problem)
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(_prove_quickly, problem, incumbent, proof)
        starts = _coarse_starts(problem, incumbent, search)
        begun.result()
        trajectories = [Neighbourhood(problem, start, problem.seed + index) for index, start in enumerate(starts)]
        work = _FIRST_ROUND
        while not (incumbent.is_settled or search.is_spent or proof.is_spent):
            searched = pool.submit(_search, trajectories, incumbent, search, work)
            _prove(problem, incumbent, proof, work)
            searched.result()
            work *= 2


def _coarse_starts(problem: MaxLoadProblem, incumbent: Incumbent, budget: Budget) -> list[tuple[int, ...]]:
    """The two best placements of coarser graphs and of the row, for searches to start from."""
    found = Incumbent(problem, lambda _: None)
    starts: dict[tuple[int, ...], int] = {}

    def remember(assignment: tuple[int, ...] | None, load: int | None) -> None:
        if assignment is not None and load is not None:
            starts[assignment] = load

    remember(incumbent.assignment, incumbent.max_load)
    work = min(3.0, budget.work / 8)
    for size in (size for size in _COARSE if size < len(problem.items)):
        if incumbent.is_settled:
            break
        upper_bound = _upper_bound(problem, incumbent)
        coarse = coarsen(problem, size, int(0.35 * upper_bound))
        found = Incumbent(coarse.problem, lambda _: None)
        model = FreeModel(coarse.problem, incumbent.lower_bound, 2 * upper_bound)
        model.open_devices_in_order()
        model.minimise_largest()
        run_model(model, found, budget, work=work, seed=problem.seed, method="")
        lifted = coarse.lift(found.assignment) if found.assignment else None
        incumbent.offer(lifted, f"CP-SAT on {len(coarse.problem.items)} items")
        remember(lifted, found.max_load)
    return sorted(starts, key=lambda start: starts[start])[:2]


def _search(trajectories: list[Neighbourhood], incumbent: Incumbent, budget: Budget, work: float) -> None:
    """Let each trajectory work on its own; the worst goes on from the best."""
    for trajectory in trajectories:
        end = trajectory.work + work / len(trajectories)
        while trajectory.work < end and not (incumbent.is_settled or budget.is_spent):
            before = trajectory.work
            if trajectory.step(min(_STEP_WORK, end - before), budget.seconds):
                incumbent.offer(trajectory.assignment, "large neighbourhoods")
            budget.work -= trajectory.work - before
    best = min(trajectories, key=lambda trajectory: trajectory.load)
    for trajectory in trajectories:
        if trajectory is not best:
            trajectory.restart(best.assignment)


def _prove_quickly(problem: MaxLoadProblem, incumbent: Incumbent, budget: Budget) -> None:
    raise_by_counts(problem, incumbent, budget)
    raise_by_shares(problem, incumbent, budget)


def _prove(problem: MaxLoadProblem, incumbent: Incumbent, budget: Budget, work: float) -> None:
    """CP-SAT on the whole problem, which may also find something better."""
    model = FreeModel(problem, incumbent.lower_bound, _upper_bound(problem, incumbent))
    model.open_devices_in_order()
    model.minimise_largest()
    if incumbent.assignment is not None:
        model.hint(in_order(problem, incumbent.assignment))
    run_model(model, incumbent, budget, work=work, seed=problem.seed, method="CP-SAT on all items")


def _upper_bound(problem: MaxLoadProblem, incumbent: Incumbent) -> int:
    if incumbent.max_load is not None:
        return incumbent.max_load
    everything = sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    return everything + sum(value.cost for value in problem.values)


def _budget(problem: MaxLoadProblem) -> Budget:
    return Budget(problem.time_limit_seconds, problem.time_limit_seconds * _WORK_PER_SECOND)
