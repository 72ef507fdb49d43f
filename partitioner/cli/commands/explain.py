"""`partition explain PLAN [MODEL]`: what limits a plan in words, and the moves that gain most, each planned."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.cli.arguments import add_unsafe, add_verbosity, seconds
from partitioner.cli.console import Progress, print_result, stdout_is_stderr, without_native_notices
from partitioner.cli.parser import Parser
from partitioner.errors import PartitionError
from partitioner.spelling import as_flags

if TYPE_CHECKING:
    from partitioner.plan_view import Plan
    from partitioner.report.explanation import Explanation


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition explain PLAN [MODEL] [options]"
    parser.description = (
        "Say what limits the step of a plan (compute, memory, a link, the bubble, imbalance), which layers and\n"
        "tensors are responsible, when a simpler plan would be as good, and which three changes gain most.\n"
        "Each change is planned before it is named; its command carries it out."
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan.json of a model")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="PATH[:NAME] of its model (default: as in the plan)")
    parser.add_argument("--no-moves", action="store_true", help="words only: plan nothing, load no model")
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="SECONDS",
        help="for each change, which its command says too (default: that of the plan)",
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON and nothing else")
    add_unsafe(parser)
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, diagnose, plan the moves, print. Where the model is missing and was not named, say so in place of moves."""
    from partitioner.cli.files import load_model_plan, refuse_as_model

    if options.model:
        refuse_as_model(options.model)
    plan = load_model_plan(options.plan, "explain")
    explanation = plan.explain() if options.no_moves else _with_moves(plan, options)
    print_result(explanation.to_json() + "\n" if options.json else explanation.to_text())
    return 0


def _with_moves(plan: Plan, options: argparse.Namespace) -> Explanation:
    """The explanation with its moves; a model that only the plan names may be missing."""
    from partitioner.report.explanation import explain_plan

    source = options.model or plan.model.source
    command = f"partition explain {shlex.quote(options.plan)} {shlex.quote(source) if source else 'MODEL'}"
    path = source.split(":")[0]
    if not options.model and not Path(path).is_file():  # known before TensorFlow is loaded
        why = f"there is no {path} here" if source else "the plan was made in Python, and names no file of its model"
        return explain_plan(plan, not_planned=f"not planned: {why}", command=command)
    try:
        return _planned(plan, source, options)
    except PartitionError as error:
        if options.model:
            raise
        message, _, help = error.as_written
        why = as_flags("; ".join(filter(None, (message, help))))
        return explain_plan(plan, not_planned=f"not planned: {why}", command=command)


def _planned(plan: Plan, source: str, options: argparse.Namespace) -> Explanation:
    progress = Progress(enabled=not options.quiet)
    with stdout_is_stderr():
        progress("loading TensorFlow")
        with without_native_notices(enabled=not options.verbose):
            from partitioner import api
            from partitioner.moves.planned import explain_with_moves
        progress(f"loading {source}")
        loaded = api.load_model(source, unsafe=options.unsafe)
        measured = Path(options.plan).parent / "costs.json"
        return explain_with_moves(
            loaded.model,
            plan,
            source=source,
            costs=str(measured) if plan.request.get("costs") == "measured" and measured.is_file() else None,
            time_limit=options.time_limit,
            example_inputs=loaded.example_inputs,
            example_targets=loaded.example_targets,
            on_progress=lambda change: progress(f"planning: {change}"),
        )
