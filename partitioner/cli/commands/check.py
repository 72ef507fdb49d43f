"""`partition check PLAN`: compute the plan of a cost graph anew, by other code, and try to refute it."""

from __future__ import annotations

import argparse
from pathlib import Path

from partitioner.cli.arguments import add_verbosity
from partitioner.cli.commands.graph import read_graph
from partitioner.cli.console import print_result
from partitioner.cli.parser import Parser
from partitioner.errors import CheckError, UsageError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition check PLAN [--workload FILE] [--json]"
    parser.description = (
        "Compute the plan of a cost graph anew, by other code: whether it is allowed, its objective,\n"
        "and whether its bound can be. Ends with exit code 7 if something is wrong."
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan.json of a cost graph")
    parser.add_argument("--workload", metavar="FILE", help="the cost graph, if it is no longer where it was")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, and nothing else")
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, check, print."""
    from partitioner.cli.files import load_cost_graph_plan
    from partitioner.cost_graphs.check import check_plan
    from partitioner.ir.json import to_json

    plan = load_cost_graph_plan(options.plan, "check")
    path = options.workload or plan.source
    if options.workload is None and not Path(path).is_file():
        raise UsageError(f"the cost graph {path!r} is not there any more", help="say where it is: --workload FILE")
    result = check_plan(plan, read_graph(path))
    if options.json:
        print_result(to_json(result, indent=2) + "\n")
    if result.problems:
        raise CheckError(
            "the plan is not what it says", where=path, notes=result.problems[:10], help="plan the cost graph again"
        )
    if not options.json:
        print_result(result.to_text())
    return 0
