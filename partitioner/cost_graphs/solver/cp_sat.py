"""Run a CP-SAT model within a budget, telling the incumbent what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.incumbent import Budget, Incumbent

Solution = cp_model.CpSolver | cp_model.CpSolverSolutionCallback


class _Model(Protocol):
    cp: cp_model.CpModel

    def assignment(self, solver: Solution, /) -> tuple[int, ...]: ...


class _Tell(cp_model.CpSolverSolutionCallback):
    def __init__(self, tell: Callable[[Solution], None]) -> None:
        super().__init__()
        self._tell = tell

    def on_solution_callback(self) -> None:
        self._tell(self)


def make_solver(*, work: float, seconds: float, seed: int = 0) -> cp_model.CpSolver:
    """CP-SAT with one worker and two limits: work in its deterministic units, and wall seconds."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = max(0.0, work)
    solver.parameters.max_time_in_seconds = seconds
    # Where linear constraints hold under conditions, looking for constraints included in others lost optima
    # (OR-Tools 9.15; a test keeps the instance).
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
        model: What to solve.
        incumbent: Is offered every solution; its bound rises if the model `is_exact`.
        budget: Is charged.
        work: In CP-SAT's deterministic units.
        seed: Same seed, same run.
        method: Named in the answer.
        lift: From the model's assignments to those of the incumbent's problem.
        is_exact: Whether the model leaves out nothing that is better than the incumbent.
        relaxes: Whether linear relaxations pay.
    """
    solver = make_solver(work=min(work, budget.work), seconds=budget.seconds, seed=seed)
    if not relaxes:
        solver.parameters.linearization_level = 0
    if is_exact:
        solver.best_bound_callback = lambda bound: incumbent.raise_bound(round(bound))
    status = solver.solve(model.cp, _Tell(lambda found: incumbent.offer(lift(model.assignment(found)), method)))
    budget.work -= solver.response_proto.deterministic_time
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT rejects the model: {model.cp.validate()}")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        incumbent.offer(lift(model.assignment(solver)), method)
        if is_exact:
            incumbent.raise_bound(round(solver.best_objective_bound))
    elif status == cp_model.INFEASIBLE and is_exact:
        # The model leaves out loads above the best known.
        if incumbent.max_load is None:
            incumbent.prove_infeasible()
        else:
            incumbent.raise_bound(incumbent.max_load)
    return status
