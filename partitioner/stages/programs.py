"""The stage programs of a captured step, for what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partitioner.ir.execution import Execution
from partitioner.ir.stage_programs import StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.cut import cut


def stage_programs(
    step: CapturedStep, execution: Execution, *, results: Sequence[str], side_effects: bool = True
) -> StagePrograms:
    """Cut a captured step as it is to run.

    Args:
        step: The captured step.
        execution: Where its ops go, and which stages recompute.
        results: Which of the step's outputs (`y_pred`, `loss`, `gradients`) are wanted.
        side_effects: Whether what the step changes is wanted.

    Raises:
        UsageError: It cannot be cut; the reason is in it.
    """
    return cut(
        step.graph,
        execution.placement,
        results=[name for key in results for name in _names(step.outputs.get(key))],
        sparse_gradients=[gradient for gradient in step.outputs.get("gradients", ()) if isinstance(gradient, tuple)],
        roots=step.side_effects if side_effects else (),
        seed=step.seed,
        devices=execution.stage_devices,
        recompute=execution.recompute,
    )


def _names(structure: Any) -> Iterable[str]:
    if isinstance(structure, str):
        yield structure
    elif isinstance(structure, Mapping):
        for value in structure.values():
            yield from _names(value)
    elif structure is not None:
        for value in structure:
            yield from _names(value)
