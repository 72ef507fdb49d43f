"""`partition show PLAN`: show a plan as text, picture or JSON; needs no TensorFlow."""

from __future__ import annotations

import argparse

from partitioner.cli.arguments import add_pictures, add_verbosity
from partitioner.cli.output import print_plan, refuse_missing_directories, write_pictures
from partitioner.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition show PLAN [options]"
    parser.description = "Show a plan again: the report, the picture, or plan.json."
    parser.add_argument("plan", metavar="PLAN", help="a plan.json, of a model or of a cost graph, or its directory")
    add_pictures(parser)
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, draw, print."""
    from partitioner.cli.files import load_plan

    refuse_missing_directories(options)
    plan = load_plan(options.plan, "show")
    print_plan(plan, options, write_pictures(plan, options))
    return 0
