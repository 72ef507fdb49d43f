"""Place a model by a saved plan, for the sub-commands that run it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.cli.console import Progress, without_native_notices

if TYPE_CHECKING:
    from partitioner.plan_view import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The API, the plan, the model that was loaded for it, and the placed model."""

    api: Any
    plan: Plan
    model: Any
    placed: Any


def placed_by(plan: Plan, options: argparse.Namespace, progress: Progress) -> Subject:
    """Load the model of `options.model` and place it. CPU devices replace missing GPUs."""
    progress("loading TensorFlow")
    with without_native_notices(enabled=not options.verbose):
        from partitioner import api
    api.set_up_devices(sorted({*plan.placement.values(), *plan.used_devices}))
    progress(f"loading {options.model}")
    loaded = api.load_model(options.model, unsafe=options.unsafe)
    examples = {"example_inputs": loaded.example_inputs, "example_targets": loaded.example_targets}
    with progress.during("placing"):
        placed = api.place(loaded.model, plan, **examples)
    return Subject(api=api, plan=plan, model=loaded.model, placed=placed)
