"""`partition bench PLAN MODEL`: time the steps of a model placed by a saved plan, in turns with simpler ways."""

from __future__ import annotations

import argparse

from partitioner.cli.arguments import add_unsafe, add_verbosity, add_write, count
from partitioner.cli.console import Progress, print_result, stdout_is_stderr
from partitioner.cli.parser import Parser
from partitioner.cli.placing import placed_by


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition bench PLAN MODEL [options]"
    parser.description = (
        "Place a model by a saved plan and time its steps on random batches, in turns with the model on one device\n"
        "and, where the batch can be divided, under TensorFlow's MirroredStrategy: predicted beside measured."
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan.json of a model, or the directory that holds it")
    parser.add_argument("model", metavar="MODEL", help="PATH[:NAME] of the model it is for")
    parser.add_argument(
        "--steps", type=count, default=5, metavar="N", help="steps of each in a round (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=count, default=10, metavar="N", help="rounds, in which all have a turn (default: %(default)s)"
    )
    parser.add_argument("--alone", action="store_true", help="time the placed model only, which takes less memory")
    parser.add_argument("--json", action="store_true", help="print the times as JSON and nothing else")
    add_unsafe(parser)
    add_write(parser)
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, place, time, print. CPU devices replace missing GPUs."""
    from partitioner.cli.files import load_model_plan, plan_file, refuse_as_model
    from partitioner.cli.output import write_views
    from partitioner.cli.whole_outputs import whole_outputs

    refuse_as_model(options.model)
    plan = load_model_plan(options.plan, "bench")
    progress = Progress(enabled=not options.quiet)
    with stdout_is_stderr():
        subject = placed_by(plan, options, progress)
        api, placed = subject.api, subject.placed
        benchmark = api.bench(
            subject.model,
            placed,
            num_steps=options.steps,
            num_rounds=options.rounds,
            alone=options.alone,
            build=lambda: api.load_model(options.model, unsafe=options.unsafe).model,
            on_progress=progress,
        )
        if options.write:
            with progress.during("measuring a step of the plan"):
                plan = api.with_measured(plan, api.measure_step(placed))
            with whole_outputs() as outputs:
                write_views(outputs, plan, plan_file(options.plan))
    if options.json:
        from partitioner.ir.json import to_json

        print_result(to_json(benchmark, indent=2) + "\n")
    else:
        print_result(benchmark.to_text())
    return 0
