"""`partition verify PLAN MODEL`: place a model by a saved plan, and compare it with the unplaced model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from partitioner.cli.arguments import add_unsafe, add_verbosity, add_write
from partitioner.cli.console import Progress, stdout_is_stderr
from partitioner.cli.output import print_plan, write_views
from partitioner.cli.parser import Parser
from partitioner.cli.placing import placed_by
from partitioner.cli.whole_outputs import whole_outputs
from partitioner.errors import VerificationError

if TYPE_CHECKING:
    from partitioner.plan_view import Plan


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the sub-command."""
    parser.usage = "partition verify PLAN MODEL [options]"
    parser.description = (
        "Place a model by a saved plan and compare it with the unplaced model: device of every op, outputs,\n"
        "gradients, weights after some steps. Ends with exit code 6 if they differ."
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan.json of a model")
    parser.add_argument("model", metavar="MODEL", help="PATH[:NAME] of the model it is for")
    parser.add_argument("--json", action="store_true", help="print the plan with its verification, and nothing else")
    add_unsafe(parser)
    add_write(parser)
    add_verbosity(parser)
    parser.add_help_options()


def run(options: argparse.Namespace) -> int:
    """Load, place, verify, print. CPU devices replace missing GPUs."""
    from partitioner.cli.files import load_model_plan, plan_file, refuse_as_model

    refuse_as_model(options.model)
    plan = load_model_plan(options.plan, "verify")
    progress = Progress(enabled=not options.quiet)
    with stdout_is_stderr():
        subject = placed_by(plan, options, progress)
        plan = checked(subject.api, subject.model, subject.placed, plan, progress)
    files = []
    if options.write:
        with whole_outputs() as outputs:
            files = write_views(outputs, plan, plan_file(options.plan))
    print_plan(plan, options, files)
    if plan.verification is not None and not plan.verification.passed:
        raise failed_verification(plan, "the placed model failed its verification")
    return 0


def checked(api: Any, model: Any, placed: Any, plan: Plan, progress: Progress) -> Plan:
    """The plan with its verification, and if that passed with measured steps."""
    from partitioner.ir.plan import Updates

    with progress.during("verifying against the unplaced model"):
        verification, measured = api.verify(model, placed), None
    if verification.passed and plan.updates == Updates.SYNC:
        with progress.during("measuring steps"):
            measured = api.measure_step(placed)
    plan = api.with_verification(plan, verification)
    return plan if measured is None else api.with_measured(plan, measured)


def failed_verification(plan: Plan, message: str) -> VerificationError:
    """The error for a plan whose verification failed."""
    verification = plan.verification
    assert verification is not None
    return VerificationError(
        message,
        notes=[
            f"misplaced ops: {len(verification.misplaced_ops)}",
            f"relative differences: outputs {verification.outputs_max_rel_diff:.1e}, "
            f"gradients {verification.gradients_max_rel_diff:.1e}, "
            f"weights after {verification.num_steps} steps {verification.weights_max_rel_diff:.1e}; "
            f"tolerance {verification.tolerance:.0e}, unplaced model reordered {verification.control_max_rel_diff:.1e}",
            *verification.misplaced_ops[:5],
            *verification.unexplained[:5],
        ],
        help="plan.json has the details; please report it with the model",
    )
