"""`partition show PLAN`: show a plan as text, picture or JSON; needs no TensorFlow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.cli.arguments import add_pictures, add_verbosity
from partitioner.cli.output import drawing, print_plan, refuse_missing_directories, views, write_pictures
from partitioner.cli.parser import Parser
from partitioner.cli.whole_outputs import Outputs, whole_outputs
from partitioner.errors import UsageError

if TYPE_CHECKING:
    from partitioner.cost_graphs.document import CostGraphPlan
    from partitioner.plan_view import Plan


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition show PLAN [options]"
    parser.description = "Show a plan again: the report, the page, the timeline, the picture, or plan.json."
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, of a model or of a cost graph, or its directory")
    parser.add_argument("--html", metavar="FILE", help="write the page here (a model's plan)")
    parser.add_argument("--timeline", metavar="FILE", help="write trace events for ui.perfetto.dev (a model's plan)")
    add_pictures(parser, of_model=True)
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, draw, print. A picture that cannot be drawn is an error here: it was asked for."""
    from partitioner.cli.files import load_plan

    refuse_missing_directories(options)
    if drawing(options) and not (options.dot or options.svg or options.png):
        name = next(iter(drawing(options)))
        raise UsageError(f"--{name} is of a picture, and none was asked for", help="name its file: --svg FILE")
    plan = load_plan(options.plan, "show")
    with whole_outputs() as outputs:
        files = _write_views(outputs, plan, options) + write_pictures(outputs, plan, options, needed=True)
    print_plan(plan, options, files)
    return 0


def _write_views(outputs: Outputs, plan: Plan | CostGraphPlan, options: argparse.Namespace) -> list[Path]:
    """Write the page and the timeline, if asked for; returns the written paths.

    Raises:
        UsageError: The plan is of a cost graph, whose step is not simulated.
    """
    from partitioner.plan_view import Plan

    asked = {name: Path(path) for name in ("html", "timeline") if (path := getattr(options, name))}
    if not asked:
        return []
    if not isinstance(plan, Plan):
        raise UsageError(f"--{next(iter(asked))} is of a model's plan, and this is a cost graph's", help="--svg FILE")
    for name, path in asked.items():
        view = {"html": "report.html", "timeline": "timeline.json"}[name]
        outputs.write(path, views(plan)[view])
    return list(asked.values())
