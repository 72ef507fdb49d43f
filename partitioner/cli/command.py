"""One command from a model file to a placed model: load, plan, place, verify, write, tell."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner import __version__
from partitioner.cli.console import (
    Progress,
    library_logs,
    print_result,
    stdout_is_stderr,
    without_native_notices,
)
from partitioner.cli.options import read_options
from partitioner.errors import InfeasibleError, ModelError, PartitionError, UsageError, VerificationError

if TYPE_CHECKING:
    from partitioner.api import Plan

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with `arguments` (`sys.argv` by default) and return its exit code."""
    verbose = False
    try:
        options = read_options(arguments)
        verbose = options.verbose
        with library_logs(shown=verbose):
            if options.list_hardware:
                _list_hardware(options)
            elif options.plans_cost_graph:
                _partition_cost_graph(options)
            elif options.check:
                _check(options)
            elif options.shows_plan:
                _show_again(options)
            else:
                _partition(options)
    except PartitionError as error:
        if verbose:
            traceback.print_exc()
        print(f"error: {error.for_command_line()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        print(
            f"error: a bug in partition {__version__}: {type(error).__name__}: {error}\n"
            "   help: please report it with the lines above and the command line",
            file=sys.stderr,
        )
        return 1
    return 0


def _partition(options: argparse.Namespace) -> None:
    from partitioner.cli.output import output_directory
    from partitioner.hardware.resolve import chosen_topology

    # What is wrong here is told before TensorFlow is loaded, which takes seconds.
    names, _, _ = chosen_topology(
        options.devices,
        topology=options.topology,
        hardware=options.hardware,
        link=options.link,
        memory_limit=options.memory_limit,
    )
    directory = output_directory(options)
    progress = Progress(enabled=not options.quiet)

    with stdout_is_stderr():
        progress("loading TensorFlow")
        with without_native_notices(enabled=not options.verbose):
            from partitioner import api
        plan, files = _compile(api, options, [name.canonical for name in names], directory, progress)
    _print(plan, options, files)
    if plan.verification is not None and not plan.verification.passed:
        raise _failed_verification(plan)


def _compile(
    api: Any, options: argparse.Namespace, devices: list[str], directory: Path, progress: Progress
) -> tuple[Plan, list[Path]]:
    """Load, plan, place, verify, write; a placed model that failed its verification is not written."""
    from partitioner.cli.output import write_pictures, write_plan

    places = not options.dry_run or options.verify
    stand_ins = api.set_up_devices(devices) if places or options.costs == "measured" else {}
    progress(f"loading {options.model}")
    loaded = api.load_model(options.model)
    progress("tracing and planning")
    try:
        with progress.bar() as on_progress:
            plan = _plan(api, options, devices, loaded, on_progress)
    except (InfeasibleError, ModelError) as error:
        error.where = error.where or loaded.where
        raise
    if not places:
        return plan, []
    progress("placing")
    placed = api.place(loaded.model, plan)
    are_here = all(stand_ins[name] == name for name in plan.used_devices)
    if options.verify or (options.verify is None and are_here):
        progress("verifying against the unplaced model")
        plan = api.with_verification(plan, api.verify(loaded.model, placed))
    if options.dry_run:
        return plan, []
    progress(f"writing {directory}")
    passed = plan.verification is None or plan.verification.passed
    files = write_plan(plan, directory, partial(api.write_saved_model, placed) if passed else None)
    if options.costs == "measured" and plan.measured_costs is not None:
        from partitioner.measure.store import write_costs

        write_costs(plan.measured_costs, directory / "costs.json")
        files.append(directory / "costs.json")
    return plan, [*files, *write_pictures(plan, options)]


def _plan(api: Any, options: argparse.Namespace, devices: list[str], loaded: Any, on_progress: Any) -> Plan:
    from partitioner import options as o
    from partitioner.compile import compile_plan

    updates = o.AsyncUpdates(max_staleness=options.max_staleness) if options.updates == "async" else "sync"
    request = o.Request(
        step=o.Step(
            training=options.training,
            loss=options.loss,
            optimizer=options.optimizer,
            input_shape=options.input_shape,
            source=options.model,
        ),
        machine=o.Machine(
            devices=devices,
            hardware=options.hardware,
            link=options.link,
            topology=options.topology,
            memory_limit=options.memory_limit,
        ),
        batch_size=options.batch_size,
        strategy=options.strategy,
        replicas=options.replicas,
        microbatches=options.microbatches,
        parallelism=o.Parallelism(schedule=options.schedule, recompute=options.recompute, updates=updates),
        constraints=o.Constraints(pins=options.pin, forbid=options.forbid, colocate=options.colocate),
        costs=options.costs,
        search=o.Search(
            objective=options.objective, time_limit=options.time_limit, seed=options.seed, what_if=options.what_if
        ),
    )
    return compile_plan(
        loaded.model,
        request,
        example_inputs=loaded.example_inputs,
        example_targets=loaded.example_targets,
        on_progress=on_progress,
    )


def _list_hardware(options: argparse.Namespace) -> None:
    """Show the catalogue; needs no TensorFlow."""
    from cost_models.catalogue import catalogue
    from partitioner.report.hardware import catalogue_json, render_catalogue

    print_result(catalogue_json(catalogue()) if options.json else render_catalogue(catalogue()))


def _partition_cost_graph(options: argparse.Namespace) -> None:
    """Plan a cost graph; needs no TensorFlow."""
    from partitioner.cli.cost_graph import partition_cost_graph

    plan, files = partition_cost_graph(options)
    _print(plan, options, files)


def _check(options: argparse.Namespace) -> None:
    """Check the plan of a cost graph; needs no TensorFlow."""
    from partitioner.cli.cost_graph import check_plan

    print_result(check_plan(_loaded(options), options.workload))


def _show_again(options: argparse.Namespace) -> None:
    """Show a plan.json anew; needs no TensorFlow."""
    from partitioner.cli.output import write_pictures

    plan = _loaded(options)
    _print(plan, options, write_pictures(plan, options))


def _loaded(options: argparse.Namespace) -> Plan:
    import msgspec

    from partitioner.plan_view import Plan

    path = Path(options.model)
    try:
        return Plan.load(path)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a plan: {error}", help="give a plan.json that partition wrote") from error


def _print(plan: Plan, options: argparse.Namespace, files: list[Path]) -> None:
    print_result(plan.to_json() + "\n" if options.json else plan.to_text(files=files))


def _failed_verification(plan: Plan) -> VerificationError:
    found = plan.verification
    assert found is not None
    return VerificationError(
        "the placed model failed its verification; it was not written",
        notes=[
            f"misplaced ops: {len(found.misplaced_ops)}",
            f"relative differences: outputs {found.outputs_max_rel_diff:.1e}, "
            f"gradients {found.gradients_max_rel_diff:.1e}, "
            f"weights after {found.num_steps} steps {found.weights_max_rel_diff:.1e}; "
            f"tolerance {found.tolerance:.0e}, unplaced model reordered {found.control_max_rel_diff:.1e}",
            *found.misplaced_ops[:5],
        ],
        help="plan.json has the details; please report it with the model",
    )
