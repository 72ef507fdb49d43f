"""The portfolio: quick starts and bounds first, then search and proof side by side in rounds that grow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from partitioner.cost_graphs.solver.bounds import quick_bound
from partitioner.cost_graphs.solver.contiguous.chain import best_chain
from partitioner.cost_graphs.solver.contiguous.model import StageModel
from partitioner.cost_graphs.solver.contiguous.pieces import settle_by_pieces
from partitioner.cost_graphs.solver.cp_sat import run_model
from partitioner.cost_graphs.solver.free.device_bound import raise_by_counts, raise_by_items
from partitioner.cost_graphs.solver.free.proof import FreeProof
from partitioner.cost_graphs.solver.free.search import FreeSearch
from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent
from partitioner.cost_graphs.solver.large import solve_large
from partitioner.cost_graphs.solver.problem import MaxLoadAnswer, MaxLoadProblem
from partitioner.cost_graphs.solver.reduce.contract import without_cycles, without_idle_items
from partitioner.cost_graphs.solver.reduce.even import LARGE
from partitioner.cost_graphs.solver.start import first_fit

_WORK_PER_SECOND = 1.0
"""Work granted to each of the two threads per second of the time limit, in CP-SAT's deterministic units.

Machines do 0.3 to 1.4 in a second: on fast and quiet machines the work ends a run.
"""

_FIRST_ROUND = 1.0
# The part of the work and time of a free search for a contiguous start; the part of a contiguous search for the DP over
# downsets.
_CONTIGUOUS_PART, _PIECES_PART = 0.15, 0.25


def solve_in_process(problem: MaxLoadProblem, report: Callable[[MaxLoadAnswer], None]) -> MaxLoadAnswer:
    """Solve a problem in this process, which must not have imported TensorFlow.

    Args:
        problem: The problem to solve within its time limit.
        report: Called whenever the best assignment or the bound improves.
    """
    acyclic = without_cycles(problem) if problem.contiguous else None
    small = without_idle_items(acyclic.problem if acyclic else problem)

    def lifted(answer: MaxLoadAnswer) -> MaxLoadAnswer:
        if answer.assignment is None:
            return answer
        assignment = small.lift(answer.assignment)
        return replace(answer, assignment=acyclic.lift(assignment) if acyclic else assignment)

    incumbent = Incumbent(small.problem, lambda answer: report(lifted(answer)))
    if len(small.problem.items) > LARGE:
        solve_large(small.problem, incumbent, _budget(problem))
    elif problem.contiguous:
        _contiguous(small.problem, incumbent)
    else:
        _free(small.problem, incumbent)
    return lifted(incumbent.answer)


def _contiguous(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    budget = _budget(problem)
    incumbent.offer(best_chain(problem), "intervals of an order")
    incumbent.raise_bound(quick_bound(problem))
    raise_by_items(problem, incumbent)
    if incumbent.is_settled:
        return
    upper_bound = _upper_bound(problem, incumbent)
    settle_by_pieces(problem, incumbent, upper_bound, _budget(problem, _PIECES_PART))
    if incumbent.is_settled:
        return
    model = StageModel(problem, incumbent.lower_bound, upper_bound)
    if incumbent.assignment is not None:
        model.hint(incumbent.assignment)
    with ThreadPoolExecutor(1) as pool:
        # Where CP-SAT does not close the gap, its own bound may stay 0.
        counted = pool.submit(raise_by_counts, problem, incumbent, upper_bound, _budget(problem))
        # Without relaxations, proofs of all tried graphs were as fast or faster, of the largest in half of the time.
        run_model(
            model,
            incumbent,
            budget,
            work=budget.work,
            seed=problem.seed,
            method="CP-SAT over stages",
            relaxes=False,
        )
        counted.result()


def _free(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    incumbent.offer(first_fit(problem), "first fit")
    incumbent.raise_bound(quick_bound(problem))
    raise_by_items(problem, incumbent)
    if incumbent.is_settled:
        return
    search, proof = FreeSearch(problem, _budget(problem)), FreeProof(problem, _budget(problem))
    _offer_contiguous(problem, incumbent)
    work = _FIRST_ROUND
    with ThreadPoolExecutor(1) as pool:
        while not (incumbent.is_settled or search.budget.is_spent or proof.budget.is_spent):
            # Both threads start from the same answer, so that neither depends on the speed of the other.
            answer, upper_bound = incumbent.answer, _upper_bound(problem, incumbent)
            searched = pool.submit(search.run, incumbent, answer, upper_bound, work)
            proof.run(incumbent, answer, upper_bound, work)
            searched.result()
            work *= 2


def _offer_contiguous(problem: MaxLoadProblem, incumbent: Incumbent) -> None:
    """Offer the best contiguous placement that a part of the time finds."""
    part = _budget(problem, _CONTIGUOUS_PART)
    acyclic = without_cycles(replace(problem, contiguous=True, time_limit_seconds=part.seconds, work_limit=part.work))
    contiguous = Incumbent(acyclic.problem, lambda _: None)
    _contiguous(acyclic.problem, contiguous)
    if contiguous.assignment is not None:
        incumbent.offer(acyclic.lift(contiguous.assignment), "contiguous pieces")


def _upper_bound(problem: MaxLoadProblem, incumbent: Incumbent) -> int:
    if incumbent.max_load is not None:
        return incumbent.max_load
    everything = sum(max(item.accelerator_cost, item.cpu_cost) for item in problem.items)
    return everything + sum(value.cost for value in problem.values)


def _budget(problem: MaxLoadProblem, part: float = 1.0) -> Budget:
    seconds, work = problem.time_limit_seconds, problem.work_limit
    return Budget(part * seconds, part * (seconds * _WORK_PER_SECOND if work is None else work))
