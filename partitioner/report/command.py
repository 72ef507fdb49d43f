"""The command, or the call, that makes a plan again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from partitioner.ir.plan import PlanDocument
from partitioner.spelling import command, python_call


def command_of(plan: PlanDocument) -> str:
    """A line for the shell, or for a plan that was made in Python, the call; empty for plans of earlier versions."""
    return command_for(plan.model.source, plan.request) if plan.request else ""


def command_for(source: str, given: Mapping[str, Any]) -> str:
    """The line or the call for a request.

    Args:
        source: The model as the command line names it; empty for a model made in Python.
        given: As `PlanDocument.request` has it.
    """
    # The order of a JSON object says nothing.
    given = dict(sorted(given.items(), key=lambda argument: (argument[0] != "devices", argument[0])))
    if source:
        # What JSON cannot say, the model file says.
        said = {name: value for name, value in given.items() if value is not None}
        return command(f"partition {shlex.quote(source)}", **said)
    return python_call("partitioner.plan", "model", **given)
