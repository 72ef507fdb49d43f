"""The portfolio: quick starts and bounds first, then search and proof side by side in rounds that grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""Items of the coarser graphs that searches start from; few items are placed well soon, many may be placed better."""

_COARSE_WORK = 3.0
_HEAVIEST = 0.35
"""How much of the best load known one coarse item may weigh."""

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
    raise_by_counts(problem, incumbent, _upper_bound(problem, incumbent), budget)
    if incumbent.is_settled:
        return
    model = StageModel(problem, incumbent.lower_bound, _upper_bound(problem, incumbent))
    if incumbent.assignment is not None:
        model.hint(incumbent.assignment)
    run_model(model, incumbent, budget, work=budget.work, seed=problem.seed, method="CP-SAT over stages")


def _free(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    incumbent.offer(first_fit(problem), "first fit")
    incumbent.raise_bound(quick_bound(problem))
    raise_by_items(problem, incumbent)
    search, proof = _budget(problem), _budget(problem)
    # Both threads start from what is known here, so that neither depends on how fast the other is.
    known, upper_bound = incumbent.answer, _upper_bound(problem, incumbent)
    with ThreadPoolExecutor(1) as pool:
        proved = pool.submit(_prove_quickly, problem, incumbent, upper_bound, proof)
        starts = _coarse_starts(problem, incumbent, known, upper_bound, search)
        proved.result()
        trajectories = [Neighbourhood(problem, start, problem.seed + index) for index, start in enumerate(starts)]
        work = _FIRST_ROUND
        while not (incumbent.is_settled or search.is_spent or proof.is_spent):
            known, upper_bound = incumbent.answer, _upper_bound(problem, incumbent)
            if not trajectories and known.assignment is not None:
                trajectories = [Neighbourhood(problem, known.assignment, problem.seed)]
            searched = pool.submit(_search, trajectories, incumbent, search, work)
            _prove(problem, incumbent, known, upper_bound, proof, work)
            searched.result()
            work *= 2


def _coarse_starts(
    problem: MaxLoadProblem, incumbent: Incumbent, known: MaxLoadAnswer, upper_bound: int, budget: Budget
) -> list[tuple[int, ...]]:
    """The two best placements of coarser graphs and of the row, for searches to start from."""
    starts = {known.assignment: upper_bound} if known.assignment is not None else {}
    work = min(_COARSE_WORK, budget.work / 8)
    for size in (size for size in _COARSE if size < len(problem.items)):
        if incumbent.is_settled:
            break
        coarse = coarsen(problem, size, int(_HEAVIEST * upper_bound))
        found = Incumbent(coarse.problem, lambda _: None)
        model = FreeModel(coarse.problem, known.lower_bound, 2 * upper_bound)
        model.open_devices_in_order()
        model.minimise_largest()
        run_model(model, found, budget, work=work, seed=problem.seed, method="")
        if found.assignment is not None and found.max_load is not None:
            lifted = coarse.lift(found.assignment)
            incumbent.offer(lifted, f"CP-SAT on {len(coarse.problem.items)} items")
            starts[lifted] = found.max_load
    return sorted(starts, key=lambda start: starts[start])[:2]


def _search(trajectories: Sequence[Neighbourhood], incumbent: Incumbent, budget: Budget, work: float) -> None:
    """Let each trajectory work on its own; then the worse go on from the best."""
    for trajectory in trajectories:
        end = trajectory.work + work / len(trajectories)
        while trajectory.work < end and not (incumbent.is_settled or budget.is_spent):
            before = trajectory.work
            if trajectory.step(min(_STEP_WORK, end - before), budget.seconds):
                incumbent.offer(trajectory.assignment, "large neighbourhoods")
            budget.work -= trajectory.work - before
    best = min(trajectories, key=lambda trajectory: trajectory.load, default=None)
    for trajectory in trajectories:
        if best is not None and trajectory is not best:
            trajectory.restart(best.assignment)


def _prove_quickly(problem: MaxLoadProblem, incumbent: Incumbent, upper_bound: int, budget: Budget) -> None:
    raise_by_counts(problem, incumbent, upper_bound, budget)
    raise_by_shares(problem, incumbent, upper_bound, budget)


def _prove(
    problem: MaxLoadProblem,
    incumbent: Incumbent,
    known: MaxLoadAnswer,
    upper_bound: int,
    budget: Budget,
    work: float,
) -> None:
    """What heavy items cost together (CPUs take fewer of them the smaller loads get), then CP-SAT on all items.

    CP-SAT may also find something better.
    """
    raise_by_counts(problem, incumbent, upper_bound, budget)
    if incumbent.is_settled:
        return
    model = FreeModel(problem, known.lower_bound, upper_bound)
    model.open_devices_in_order()
    model.minimise_largest()
    if known.assignment is not None:
        model.hint(in_order(problem, known.assignment))
    run_model(model, incumbent, budget, work=work, seed=problem.seed, method="CP-SAT on all items")


def _upper_bound(problem: MaxLoadProblem, incumbent: Incumbent) -> int:
    if incumbent.max_load is not None:
        return incumbent.max_load
    everything = sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    return everything + sum(value.cost for value in problem.values)


def _budget(problem: MaxLoadProblem) -> Budget:
    work = problem.work_limit
    return Budget(problem.time_limit_seconds, problem.time_limit_seconds * _WORK_PER_SECOND if work is None else work)
