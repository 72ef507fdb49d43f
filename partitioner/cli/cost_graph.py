"""The command line for cost graphs: planned without a model, and without TensorFlow."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from math import isinf
from pathlib import Path

from partitioner.cli.output import output_directory, write_pictures, write_plan
from partitioner.errors import UsageError, VerificationError
from partitioner.plan_view import Plan


def partition_cost_graph(options: argparse.Namespace) -> tuple[Plan, list[Path]]:
    """Read, plan, write; the plan and the files written."""
    from partitioner.constraints.match import requirements_of
    from partitioner.cost_graphs.plan import plan_cost_graph
    from partitioner.cost_graphs.read import read_cost_graph
    from partitioner.ir.devices import parse_devices

    names = parse_devices(options.devices) if options.devices is not None else []
    directory = output_directory(options)
    path = Path(options.model)
    fields = plan_cost_graph(
        read_cost_graph(options.model),
        names,
        name=path.stem,
        source=options.model,
        requirements=requirements_of(options.pin, options.forbid, options.colocate),
        contiguous=options.contiguous,
        memory_limit=options.memory_limit,
        time_limit=options.time_limit,
        work_limit=options.work_limit,
        seed=options.seed,
        what_if=options.what_if,
        on_progress=_Line(enabled=not options.quiet),
    )
    packages = ("partition", "ortools", "numpy")
    plan = Plan(versions={package: version(package) for package in packages}, **fields)
    if options.dry_run:
        return plan, []
    return plan, [*write_plan(plan, directory, None), *write_pictures(plan, options)]


class _Line:
    """What the solver knows, a line whenever that changes for the reader."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last = ""

    def __call__(self, objective: float, bound: float, seconds: float) -> None:
        found = "no plan yet" if isinf(objective) else f"objective {objective:.6g}"
        gap = "" if isinf(objective) or not objective else f", gap {100 * (1 - bound / objective):.2f} %"
        line = f"{found}, lower bound {bound:.6g}{gap}"
        if self._enabled and line != self._last:
            print(f"[{seconds:5.1f} s] {line}", file=sys.stderr, flush=True)
        self._last = line


def check_plan(plan: Plan, workload: str | None) -> str:
    """Check a plan against its cost graph: what is said if nothing is wrong.

    Raises:
        UsageError: The plan is for a model, or for another cost graph.
        ModelError: The cost graph cannot be read.
        VerificationError: The plan is not what it says.
    """
    from partitioner.cost_graphs.check import check_cost_graph_plan
    from partitioner.cost_graphs.read import read_cost_graph

    if plan.cost_graph is None:
        raise UsageError(
            f"the plan is for the model {plan.model.source}, not for a cost graph",
            help="plans of models are checked by running them: partition MODEL --devices ... --verify",
        )
    path = workload or plan.model.source
    if workload is None and not Path(path).is_file():
        raise UsageError(f"the cost graph {path!r} is not there any more", help="say where it is: --workload FILE")
    found = check_cost_graph_plan(plan, read_cost_graph(path))
    if found.problems:
        raise VerificationError(
            "the plan is not what it says", where=path, notes=found.problems[:10], help="plan the cost graph again"
        )
    solver, unit = plan.solver, plan.solver.unit
    return (
        f"the plan is allowed, and its largest load is {found.objective:.9g} {unit} as it says\n"
        f"its lower bound {solver.lower_bound:.9g} {unit} (gap {100 * solver.gap:.4g} %) is not contradicted: "
        f"a simple bound is {found.simple_bound:.9g} {unit}, and none of {found.num_moves:,} placements beside it is "
        "below\n"
    )
