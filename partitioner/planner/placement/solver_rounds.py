"""Ask the solver for a placement until its answer fits in the simulation too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partitioner.deadline import LEAST_SOLVE_SECONDS, SHARE_OF_FIRST_SOLVE, Deadline
from partitioner.ir.costed import CostedGraph
from partitioner.ir.problem import PlacementProblem
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.item_bytes import item_bytes
from partitioner.planner.placement.evaluator import PlacementEvaluator
from partitioner.planner.placement.solve.client import SolveResult, solve

MEMORY_ROUNDS = 4
"""How often the solver is asked again where its answer does not fit."""


def answers(
    problem: PlacementProblem,
    costed: CostedGraph,
    coarsening: Coarsening,
    evaluator: PlacementEvaluator,
    deadline: Deadline,
) -> Iterator[SolveResult]:
    """The solver's answers, until one fits.

    Where the simulated peak of an answer passes a limit, the problem is solved again with that much less capacity.
    Where the problem is infeasible, it is solved again without the bytes that need not be held at the same time.

    Args:
        problem: The first problem; its time limit holds for all rounds together.
        costed: The step.
        coarsening: The items.
        evaluator: Simulates answers.
        deadline: May end the rounds earlier.
    """
    seconds_left = min(problem.time_limit_seconds * SHARE_OF_FIRST_SOLVE, deadline.seconds_left)
    spent, other = 0.0, problem
    for _ in range(0 if deadline.is_over else 1 + MEMORY_ROUNDS):
        asked = replace(other, time_limit_seconds=max(seconds_left, LEAST_SOLVE_SECONDS))
        result = solve(asked)
        yield result
        spent += result.solution.seconds
        again = asked if result.solution.status == "time-limit" else None
        relaxed = _relaxed(asked, result, costed, coarsening)
        next_problem = relaxed or _tighter(asked, result, evaluator) or again
        seconds_left = min(problem.time_limit_seconds - spent, deadline.seconds_left)
        if next_problem is None or seconds_left <= 0:
            return
        other = next_problem


def _relaxed(
    problem: PlacementProblem, result: SolveResult, costed: CostedGraph, coarsening: Coarsening
) -> PlacementProblem | None:
    """The problem with the least bytes that each item needs, where all that items keep does not fit."""
    least = item_bytes(costed, coarsening, at_least=True)
    items = tuple(replace(item, memory_bytes=size) for item, size in zip(problem.items, least, strict=True))
    if result.solution.status != "infeasible" or items == problem.items:
        return None
    return replace(problem, items=items)


def _tighter(problem: PlacementProblem, result: SolveResult, evaluator: PlacementEvaluator) -> PlacementProblem | None:
    """The problem with less capacity where the simulated peak passed the limit; None where the answer fits."""
    assignment = result.solution.assignment
    if assignment is None or (evaluation := evaluator(assignment)).fits:
        return None
    over = evaluator.over_bytes(evaluator.schedule(assignment, evaluation.delays))
    used = [0] * len(problem.devices)
    for item, device in zip(problem.items, assignment, strict=True):
        used[device] += item.memory_bytes
    devices = tuple(
        replace(device, capacity_bytes=max(0, used[index] - extra)) if extra else device
        for index, (device, extra) in enumerate(zip(problem.devices, over, strict=True))
    )
    return replace(problem, devices=devices)
