"""`partition MODEL --devices LIST`: load, plan, place, verify, write, report."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner import __version__
from partitioner.cli import compile_arguments
from partitioner.cli.arguments import add_unsafe
from partitioner.cli.commands.verify import checked, failed_verification
from partitioner.cli.console import Progress, stdout_is_stderr, without_native_notices
from partitioner.cli.output import output_directory, print_plan, views, write_pictures, write_plan
from partitioner.cli.parser import Parser
from partitioner.cli.whole_outputs import whole_outputs
from partitioner.errors import InfeasibleError, ModelError

if TYPE_CHECKING:
    from partitioner.options import Request
    from partitioner.plan_view import Plan

_USAGE = """\
partition MODEL --devices LIST [options]
       partition COMMAND ..."""

_EPILOG = """\
commands (partition COMMAND --help):
  graph FILE              plan a cost graph, without a model
  show PLAN               a plan again: report, picture, JSON
  diff A B                two plans compared: layers, time, memory
  explain PLAN [MODEL]    what limits a plan, and which changes gain most
  check PLAN              compute a cost graph's plan anew, and refute it
  verify PLAN MODEL       run a model by its plan, beside the unplaced model
  bench PLAN MODEL        time a model by its plan, beside one device
  hardware                devices, links and hosts that have a name
  doctor --devices LIST   examine this machine: what holds, what to do
  worker --port N         lend this machine's devices to another machine

examples:
  partition model.py --devices GPU:0,GPU:1 --batch-size 256
  partition model.py --devices GPU:0-3 --strategy mixed --replicas 2
"""

_LONG_EPILOG = f"""\
{_EPILOG.rstrip()}
  partition 'model.py:build_model(depth=50)' --devices GPU:0-3 --hardware t4
  partition model.py --devices CPU:0,CPU:1 --strategy layer-split --pin 'enc.*=CPU:0'
  partition model.py --devices GPU:0,GPU:1 --microbatches 8 --schedule 1f1b
  partition model.py --topology '64x dgx-h100' --dry-run
  partition model.py --plan model_partitioned/plan.json --retarget GPU:0=CPU:0
  partition show model_partitioned/plan.json --svg placement.svg
  partition graph workload.json --devices GPU:0-5,CPU:0 --contiguous

exit codes:
  0  a plan was found                   5  time limit reached without a plan
  1  a bug of ours                      6  the placed model failed verification
  2  usage                              7  a check that was asked for failed
  3  model not found or not traceable   8  a file could not be written
  4  proved infeasible                130  interrupted
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the main command."""
    parser.usage, parser.epilog = _USAGE, _EPILOG
    parser.description = "Split a Keras model over devices: plan, place, verify."
    parser.add_argument("model", metavar="MODEL", help="PATH[:NAME]: a .py file or a .keras file")
    add_unsafe(parser)
    compile_arguments.add_machine(parser.add_argument_group("the devices"))
    compile_arguments.add_step(parser.add_argument_group("the step to plan"))
    compile_arguments.add_parallelism(parser.add_argument_group("how the model is split"))
    search = parser.add_argument_group("the search")
    compile_arguments.add_plan(search)
    compile_arguments.add_goal(search)
    compile_arguments.add_results(parser.add_argument_group("the results"))
    parser.add_argument("--version", action="version", version=f"partition {__version__}", help="show it and exit")
    parser.add_help_options(everyday=compile_arguments.EVERYDAY, long_epilog=_LONG_EPILOG)


def run(options: argparse.Namespace) -> int:
    """Plan a model. Wrong options are refused before TensorFlow is loaded, which takes seconds."""
    from partitioner.cli.files import refuse_as_model
    from partitioner.cli.given_plan import given_plan, refuse_without_plan
    from partitioner.cli.request import request_of

    refuse_as_model(options.model)
    if options.plan:
        asked = given_plan(options)
    else:
        refuse_without_plan(options)
        asked = request_of(options)
    directory = output_directory(options, options.model)
    progress = Progress(enabled=not options.quiet)
    with stdout_is_stderr():
        progress("loading TensorFlow")
        with without_native_notices(enabled=not options.verbose):
            from partitioner import api
        plan, files = _compiled(api, asked, options, directory, progress)
    print_plan(plan, options, files)
    if plan.verification is not None and not plan.verification.passed:
        raise failed_verification(plan, "the placed model failed its verification; it was not written")
    return 0


def _compiled(
    api: Any, asked: Request | Plan, options: argparse.Namespace, directory: Path, progress: Progress
) -> tuple[Plan, list[Path]]:
    """Load, plan, place, verify, write; a placed model that failed its verification is not written.

    A plan that was made before is placed also in a dry run, which says whether it is for this model.
    """
    from partitioner.plan_view import Plan

    places = isinstance(asked, Plan) or not options.dry_run or options.verify
    measures = not isinstance(asked, Plan) and asked.costs == "measured"
    stand_ins = api.set_up_devices(_names(asked)) if places or measures else {}
    progress(f"loading {options.model}")
    loaded = api.load_model(options.model, unsafe=options.unsafe)
    plan = asked if isinstance(asked, Plan) else _planned(asked, loaded, progress)
    if options.verbose and plan.planning_seconds:
        parts = (f"{part} {seconds:.1f} s" for part, seconds in plan.planning_seconds.items())
        progress.said(f"planned: {', '.join(parts)}")
    if not places:
        return plan, []
    with progress.during("placing"):
        examples = {"example_inputs": loaded.example_inputs, "example_targets": loaded.example_targets}
        placed = api.place(loaded.model, plan, **examples)
    are_here = all(stand_ins[name] == name for name in plan.used_devices)
    if options.verify or (options.verify is None and are_here and not (options.dry_run and isinstance(asked, Plan))):
        plan = checked(api, loaded.model, placed, plan, progress)
    if options.dry_run:
        return plan, []
    progress(f"writing {directory}")
    more = views(plan)
    if plan.verification is None or plan.verification.passed:
        more["placed_model"] = partial(api.write_saved_model, placed)
    if measures:
        more["costs.json"] = plan.save_costs
    with whole_outputs() as outputs:
        files = write_plan(outputs, plan, directory, options, more)
        files += write_pictures(outputs, plan, options)
    return plan, files


def _names(asked: Request | Plan) -> list[str]:
    """Canonical names of the devices that are asked for, or that a plan uses."""
    from partitioner.plan_view import Plan

    if isinstance(asked, Plan):
        return sorted({*asked.placement.values(), *asked.used_devices})
    return [name.canonical for name in asked.machine.names]


def _planned(request: Request, loaded: Any, progress: Progress) -> Plan:
    from partitioner.compile import SEARCH, compile_plan

    try:
        with progress.during("tracing and planning") as on_progress:
            plan = compile_plan(
                loaded.model,
                request,
                example_inputs=loaded.example_inputs,
                example_targets=loaded.example_targets,
                on_progress=on_progress,
            )
    except (InfeasibleError, ModelError) as error:
        error.where = error.where or loaded.where
        raise
    if SEARCH not in plan.planning_seconds:
        progress.said("took the plan that was made before; --no-cache searches anew")
    return plan
