"""`partition graph FILE`: plan a cost graph, without a model and without TensorFlow."""

from __future__ import annotations

import argparse
import sys
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.cli.arguments import (
    add_constraints,
    add_memory_limit,
    add_output,
    add_search,
    add_verbosity,
    by_pattern,
    work,
)
from partitioner.cli.output import output_directory, print_plan, write_pictures, write_plan
from partitioner.cli.parser import Parser
from partitioner.cli.whole_outputs import whole_outputs
from partitioner.errors import ModelError

if TYPE_CHECKING:
    from partitioner.cost_graphs.graph import CostGraph

_EPILOG = """\
examples:
  partition graph workload.json
  partition graph graph.txt --devices GPU:0-5,CPU:0 --contiguous --time-limit 600
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage, parser.epilog = "partition graph FILE [options]", _EPILOG
    parser.description = "Plan a cost graph: the placement with the smallest largest load, and a bound for it."
    parser.add_argument("file", metavar="FILE", help="a workload of msr-fiddle (.json) or a PipeDream profile (.txt)")
    group = parser.add_argument_group("the devices")
    group.add_argument("--devices", metavar="LIST", help="GPU:0-3,CPU:0 (default: as many as the file is for)")
    add_memory_limit(group)
    group = parser.add_argument_group("the search")
    group.add_argument("--contiguous", action="store_true", help="give each device one piece of a chain")
    add_constraints(group, "nodes")
    add_search(group, "for the search, which then ends with the best plan so far", default=60.0, otherwise="60")
    group.add_argument(
        "--work-limit",
        type=work,
        metavar="WORK",
        help="end the search after so much work (1 is about a second of a fast core), if that comes before the time "
        "limit; so the placement does not depend on how busy the machine is",
    )
    group = parser.add_argument_group("the results")
    add_output(group, "<file>", of_model=False)
    add_verbosity(group)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Read, plan, write, print."""
    from partitioner.constraints.match import requirements_of
    from partitioner.cost_graphs.plan import plan_cost_graph
    from partitioner.ir.devices import parse_devices

    requirements = requirements_of(
        by_pattern("pin", options.pin), by_pattern("forbid", options.forbid), options.colocate
    )
    names = parse_devices(options.devices) if options.devices is not None else []
    directory = output_directory(options, options.file)
    plan = plan_cost_graph(
        read_graph(options.file),
        names,
        name=Path(options.file).stem,
        source=options.file,
        requirements=requirements,
        contiguous=options.contiguous,
        memory_limit=options.memory_limit,
        time_limit=options.time_limit,
        work_limit=options.work_limit,
        seed=options.seed,
        what_if=options.what_if,
        on_progress=_SolverProgress(enabled=not options.quiet),
    )
    files = []
    if not options.dry_run:
        with whole_outputs() as outputs:
            files = write_plan(outputs, plan, directory, options) + write_pictures(outputs, plan, options)
    print_plan(plan, options, files)
    return 0


def read_graph(path: str) -> CostGraph:
    """Read the cost graph in a file.

    Raises:
        UsageError: It is a model or a plan; the error names the right sub-command.
        ModelError: It cannot be read, or is not a valid cost graph.
    """
    from partitioner.cli.files import refuse_as_plan, refuse_model
    from partitioner.cost_graphs.read import read_cost_graph

    refuse_model(path, "graph")
    try:
        return read_cost_graph(path)
    except ModelError:
        refuse_as_plan(path)
        raise


class _SolverProgress:
    """Prints incumbent, bound and gap of the solver, when the printed text changes."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last = ""

    def __call__(self, objective: float, bound: float, seconds: float) -> None:
        incumbent = "no plan yet" if isinf(objective) else f"objective {objective:.6g}"
        gap = "" if isinf(objective) or not objective else f", gap {100 * (1 - bound / objective):.2f} %"
        line = f"{incumbent}, lower bound {bound:.6g}{gap}"
        if self._enabled and line != self._last:
            print(f"[{seconds:5.1f} s] {line}", file=sys.stderr, flush=True)
        self._last = line
