"""`partition show PLAN`: show a plan as text, picture or JSON; needs no TensorFlow."""

from __future__ import annotations

import argparse

from partitioner.cli.arguments import add_pictures, add_verbosity
from partitioner.cli.output import drawing, print_plan, refuse_missing_directories, write_pictures
from partitioner.cli.parser import Parser
from partitioner.errors import UsageError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition show PLAN [options]"
    parser.description = "Show a plan again: the report, the picture, or plan.json."
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, of a model or of a cost graph, or its directory")
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
    print_plan(plan, options, write_pictures(plan, options, needed=True))
    return 0
