"""Run a CP-SAT model within a budget, and offer its solutions to the incumbent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent

Solution = cp_model.CpSolver | cp_model.CpSolverSolutionCallback


class _Model(Protocol):
    cp: cp_model.CpModel

    def assignment(self, solver: Solution, /) -> tuple[int, ...]: ...


class _OnSolution(cp_model.CpSolverSolutionCallback):
    def __init__(self, call: Callable[[Solution], None]) -> None:
        super().__init__()
        self._call = call

    def on_solution_callback(self) -> None:
        self._call(self)


def make_solver(*, work: float, seconds: float, seed: int = 0) -> cp_model.CpSolver:
    """CP-SAT with a single worker and two limits: work in its deterministic units, and wall seconds."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = max(0.0, work)
    solver.parameters.max_time_in_seconds = seconds
    # Detection of included linear constraints lost optima where constraints are conditional (OR-Tools 9.15; a test
    # keeps the instance).
    solver.parameters.presolve_inclusion_work_limit = 0
    return solver


def run_model(
    model: _Model,
    incumbent: Incumbent,
    budget: Budget,
    *,
    work: float,
    seed: int,
    method: str,
    lift: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
    is_exact: bool = True,
    relaxes: bool = True,
) -> cp_model.CpSolverStatus:
    """Solve a model whose objective is the largest load, for at most `work` of the budget.

    Args:
        model: The model to solve.
        incumbent: Gets every solution; its bound rises if the model `is_exact`.
        budget: The budget to charge.
        work: Limit in CP-SAT's deterministic units.
        seed: Same seed, same run.
        method: Name of the method in the answer.
        lift: Turns the model's assignments into those of the incumbent's problem.
        is_exact: Whether the model includes every assignment that is better than the incumbent.
        relaxes: Whether to use linear relaxations.
    """
    solver = make_solver(work=min(work, budget.work), seconds=budget.seconds, seed=seed)
    if not relaxes:
        solver.parameters.linearization_level = 0
    if is_exact:
        solver.best_bound_callback = lambda bound: incumbent.raise_bound(round(bound))
    status = solver.solve(
        model.cp, _OnSolution(lambda solution: incumbent.offer(lift(model.assignment(solution)), method))
    )
    budget.work -= solver.response_proto.deterministic_time
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT rejects the model: {model.cp.validate()}")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        incumbent.offer(lift(model.assignment(solver)), method)
        if is_exact:
            incumbent.raise_bound(round(solver.best_objective_bound))
    elif status == cp_model.INFEASIBLE and is_exact:
        # The model leaves out loads above the incumbent's.
        if incumbent.max_load is None:
            incumbent.prove_infeasible()
        else:
            incumbent.raise_bound(incumbent.max_load)
    return status
