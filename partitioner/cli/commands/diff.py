"""`partition diff A B`: two plans of a model compared, and refused where the second is worse; needs no TensorFlow."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from partitioner.cli.arguments import add_verbosity, percentage
from partitioner.cli.console import print_result
from partitioner.cli.parser import Parser
from partitioner.errors import CheckError
from partitioner.ir.devices import short_name
from partitioner.ir.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from partitioner.report.comparison import Comparison


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition diff A B [options]"
    parser.description = (
        "Compare two plans of a model: stages, layers that moved, step time, memory, bytes sent, assumptions.\n"
        "Ends with exit code 7 if a check that was asked for fails."
    )
    parser.add_argument("before", metavar="A", help="a plan.json, or the directory that holds it")
    parser.add_argument("after", metavar="B", help="the plan that is compared with it")
    parser.add_argument(
        "--fail-if-slower",
        type=percentage,
        metavar="PERCENT",
        help="check that the predicted step of B takes at most this much longer than that of A: 5%%",
    )
    parser.add_argument(
        "--fail-if-memory",
        type=percentage,
        metavar="PERCENT",
        help="check that no device of B holds more of the memory it may use: 90%%",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON and nothing else")
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, compare, print, check.

    Raises:
        CheckError: B is slower or holds more than allowed.
    """
    from partitioner.cli.files import load_model_plan
    from partitioner.ir.json import to_json
    from partitioner.report.comparison import compare_plans
    from partitioner.report.comparison_text import render_comparison

    names = options.before, options.after
    before, after = (load_model_plan(name, "diff") for name in names)
    comparison = compare_plans(before, after)
    if options.json:
        print_result(to_json(comparison, indent=2) + "\n")
    else:
        print_result(render_comparison(comparison, names, verbose=options.verbose))
    failures = [*_slower(comparison, options.fail_if_slower), *_too_full(comparison, options.fail_if_memory)]
    if failures:
        first, *more = failures
        raise CheckError(
            f"{options.after}: {first}",
            notes=more,
            help=None if options.verbose or options.json else shlex.join(["partition", "diff", *names, "--verbose"]),
        )
    return 0


def _slower(comparison: Comparison, allowed: float | None) -> Iterator[str]:
    (step,) = (figure for figure in comparison.figures if figure.name == "step")
    if allowed is not None and step.after > step.before * (1 + allowed):
        more = f"{format_percent(step.difference / step.before)} more" if step.before else "more"
        yield (
            f"the predicted step takes {format_seconds(step.after)}, {more} than the {format_seconds(step.before)} of "
            f"A; at most {format_percent(allowed)} more is allowed"
        )


def _too_full(comparison: Comparison, allowed: float | None) -> Iterator[str]:
    for peak in comparison.memory:
        if allowed is not None and peak.after_share > allowed:
            yield (
                f"{short_name(peak.device)} holds {format_bytes(peak.after_bytes or 0)} of the "
                f"{format_bytes(peak.after_limit_bytes or 0)} it may use, {format_percent(peak.after_share)}; at most "
                f"{format_percent(allowed)} is allowed"
            )
