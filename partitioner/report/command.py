"""The command, or the call, that makes a plan again."""

from __future__ import annotations

import shlex

from partitioner.ir.plan import PlanDocument
from partitioner.spelling import command, python_call


def command_of(plan: PlanDocument) -> str:
    """A line for the shell, or for a plan that was made in Python, the call; empty for plans of earlier versions."""
    if not plan.request:
        return ""
    # The order of a JSON object says nothing.
    given = dict(sorted(plan.request.items(), key=lambda argument: (argument[0] != "devices", argument[0])))
    if plan.model.source:
        # What JSON cannot say, the model file says.
        said = {name: value for name, value in given.items() if value is not None}
        return command(f"partition {shlex.quote(plan.model.source)}", **said)
    return python_call("partitioner.plan", "model", **given)
