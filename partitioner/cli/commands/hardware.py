"""`partition hardware`: the named devices, links and hosts; needs no TensorFlow."""

from __future__ import annotations

import argparse

from partitioner.cli.arguments import add_verbosity
from partitioner.cli.console import print_result
from partitioner.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition hardware [--json]"
    parser.description = "Show what --hardware, --link and --topology know by name."
    parser.add_argument("--json", action="store_true", help="print it as JSON, with the sources of every figure")
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Print the catalogue."""
    from cost_models.catalogue import catalogue
    from partitioner.report.hardware import catalogue_json, render_catalogue

    print_result(catalogue_json(catalogue()) if options.json else render_catalogue(catalogue()))
    return 0
