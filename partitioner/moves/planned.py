"""Plan the candidates, and keep the moves that gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras

from partitioner.binding.traced_step import traced_again
from partitioner.binding.transfer import rebase
from partitioner.compile import compile_plan
from partitioner.constraints.changes import gains
from partitioner.errors import UsageError
from partitioner.ir.plan import PlanDocument, WhatIf
from partitioner.moves.candidates import Candidate, candidates, changed
from partitioner.moves.request import refuse_unsaid, request_of
from partitioner.report.command import command_for
from partitioner.report.explanation import AS_GOOD, Explanation, Move, explain_plan, objective_of
from partitioner.spelling import argument

MOST_MOVES = 3


def explain_with_moves(
    model: keras.Model,
    plan: PlanDocument,
    *,
    source: str = "",
    costs: str | None = None,
    time_limit: float | None = None,
    example_inputs: Any = None,
    example_targets: Any = None,
    on_progress: Callable[[str], object] | None = None,
) -> Explanation:
    """The explanation of a plan with the three moves that gain most.

    Args:
        model: The model that was planned, or a model built alike.
        plan: Its plan.
        source: The model as the command line names it, for the commands; by default as the plan has it.
        costs: A file of measured costs, in place of measuring again.
        time_limit: Seconds for each move, in place of those that the plan had; the commands say it.
        example_inputs: As in `Step`, where the model needs them.
        example_targets: As `example_inputs`.
        on_progress: Called with each move before it is planned.

    Raises:
        UsageError: The plan is of another model, does not say what was asked for, or has costs that are measured anew.
        ModelError: The model cannot be traced.
    """
    given = _comparable(plan, costs, time_limit)
    examples = {"example_inputs": example_inputs, "example_targets": example_targets}
    rebase(plan, traced_again(model, plan, **examples).step.graph)  # refuses another model
    source = source or plan.model.source
    before, unit = objective_of(plan)

    def objective_after(candidate: Candidate) -> float:
        if on_progress is not None:
            on_progress(candidate.change)
        return objective_of(compile_plan(model, request_of(candidate.request, source=source), **examples))[0]

    tried = candidates(replace(plan, request=given))
    rows = gains(((candidate.change, candidate) for candidate in tried), before, unit, objective_after)
    pairs = sorted(zip(rows, tried, strict=True), key=lambda pair: _rank(pair, given))
    best: list[tuple[WhatIf, Candidate]] = []
    for pair in pairs:
        if _gain(pair[0]) >= AS_GOOD and not any(_does_more(pair[1], other, given) for _, other in best):
            best.append(pair)
    best = best[:MOST_MOVES]
    moves = tuple(_move(row, candidate, command_for(source, candidate.request)) for row, candidate in best)
    others = tuple(pair[0] for pair in pairs if pair not in best)
    return replace(explain_plan(plan), moves=moves, others=others)


def _comparable(plan: PlanDocument, costs: str | None, time_limit: float | None) -> dict[str, Any]:
    """The request that moves change: without questions of its own, and with costs that are the same each time.

    Raises:
        UsageError: There is no such request.
    """
    if not plan.request:
        raise UsageError(
            "the plan is of an earlier version, which did not keep what was asked for", help="plan the model again"
        )
    given = changed(plan.request, {"what_if": None, **({"time_limit": time_limit} if time_limit else {})})
    if given.get("costs") == "measured" and costs is None:
        raise UsageError(
            "the costs of the plan were measured, and measuring them again gives others",
            help=f"plan with the costs.json that was written then: {argument('costs', 'costs.json')}",
        )
    given = changed(given, {"costs": costs} if costs is not None else {})
    refuse_unsaid(given)
    return given


def _rank(pair: tuple[WhatIf, Candidate], given: dict[str, Any]) -> tuple[float, int]:
    """The greatest gain first, by 0.1 %; of equal ones the one that changes least."""
    row, candidate = pair
    return -round(_gain(row), 3), len(_changes(candidate, given))


def _does_more(candidate: Candidate, other: Candidate, given: dict[str, Any]) -> bool:
    """Whether a candidate changes all that a better one does, and something else, which then gains nothing."""
    return _changes(other, given).items() <= _changes(candidate, given).items()


def _changes(candidate: Candidate, given: dict[str, Any]) -> dict[str, str]:
    """The arguments that a candidate changes, with their new values as text."""
    names = dict.fromkeys((*given, *candidate.request))
    return {name: repr(candidate.request.get(name)) for name in names if given.get(name) != candidate.request.get(name)}


def _gain(row: WhatIf) -> float:
    return 1 - row.after / row.before if row.after is not None and row.before else 0.0


def _move(row: WhatIf, candidate: Candidate, command: str) -> Move:
    assert row.after is not None
    return Move(
        change=row.change,
        before=row.before,
        after=row.after,
        unit=row.unit,
        gain=_gain(row),
        command=command,
        request=candidate.request,
    )
