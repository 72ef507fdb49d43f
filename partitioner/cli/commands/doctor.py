"""`partition doctor --devices GPU:0,GPU:1`: whether this machine does what plans for it assume."""

from __future__ import annotations

import argparse
import shutil
import sys

from partitioner.cli.arguments import add_verbosity
from partitioner.cli.console import Progress, print_result, stdout_is_stderr, without_native_notices
from partitioner.cli.parser import Parser
from partitioner.errors import CheckError

_LEAST_WIDTH, _WIDTH_WITHOUT_TERMINAL = 100, 160


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition doctor --devices LIST [--divide] [--json]"
    parser.description = (
        "Look at the devices, their memory, kernels and profiler; then plan, place, train and verify small models\n"
        "that use every mechanism of a placed model. Takes some minutes. Ends with exit code 7 if a check fails."
    )
    parser.add_argument(
        "--devices", metavar="LIST", required=True, help="the devices: GPU:0,GPU:1, GPU:0-3, CPU:0,CPU:1"
    )
    parser.add_argument(
        "--divide", action="store_true", help="on a machine with one GPU: GPU:0, GPU:1, ... are parts of it, of 1 GiB"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, to attach to a report")
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Examine, print; CPU devices replace missing GPUs.

    Raises:
        CheckError: A check failed.
    """
    progress = Progress(enabled=not options.quiet)
    with stdout_is_stderr():
        progress("loading TensorFlow")
        with without_native_notices(enabled=not options.verbose):
            from partitioner.doctor.examine import examine
        diagnosis = examine(options.devices, progress, divide=options.divide)
    if options.json:
        from partitioner.ir.json import to_json

        print_result(to_json(diagnosis, indent=2) + "\n")
    else:
        from partitioner.doctor.render import render

        size = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 25))
        print_result(render(diagnosis, width=max(size.columns, _LEAST_WIDTH), color=sys.stdout.isatty()))
    if diagnosis.failed:
        raise CheckError(
            f"{len(diagnosis.failed)} of {len(diagnosis.findings)} checks failed",
            notes=[finding.check for finding in diagnosis.failed],
            help=None if options.json else "see the advice above; partition doctor --json prints what a report needs",
        )
    return 0
