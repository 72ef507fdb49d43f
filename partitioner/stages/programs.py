"""The stage programs of a captured step, for the wanted results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from partitioner.ir.execution import Execution
from partitioner.ir.stage_programs import StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.cut import cut
from partitioner.stages.roles import Roles, find_roles
from partitioner.stages.schedules import ScheduleKind


def stage_programs(
    step: CapturedStep,
    execution: Execution,
    *,
    results: Sequence[str],
    side_effects: bool = True,
    compiled: Collection[str] = frozenset(),
) -> StagePrograms:
    """Cut a captured step for an execution.

    Args:
        step: The captured step.
        execution: Where its ops go, and which stages recompute.
        results: Which of the step's outputs (`y_pred`, `loss`, `gradients`) are wanted.
        side_effects: Whether the step's changes of state are wanted.
        compiled: The ops that XLA compiles, if programs are to be run: what they compute again takes it no time.

    Raises:
        UsageError: The step cannot be cut; with the reason.
    """
    return StageCutter(step, results=results, side_effects=side_effects)(execution, compiled=compiled)


class StageCutter:
    """Cuts one step for any placement, as `stage_programs` does once; computes the roles of ops only once.

    Searches of many layouts ask for the programs of the step in one stage, which are kept.
    """

    def __init__(self, step: CapturedStep, *, results: Sequence[str], side_effects: bool = True) -> None:
        self._step, self._results, self._side_effects = step, results, side_effects
        self._in_one_stage: dict[tuple[object, ...], StagePrograms] = {}

    def __call__(self, execution: Execution, *, compiled: Collection[str] = frozenset()) -> StagePrograms:
        """The stage programs of the step under an execution; raises as `stage_programs` does."""
        if len(execution.stage_devices) > 1:
            return self._cut(execution, compiled)
        placed = tuple(execution.placement), tuple(execution.placement.values())
        again = frozenset(execution.recompute), frozenset(execution.rerun.items())
        key = *placed, *execution.stage_devices, again, execution.schedule, frozenset(compiled)
        if key not in self._in_one_stage:
            self._in_one_stage[key] = self._cut(execution, compiled)
        return self._in_one_stage[key]

    def _cut(self, execution: Execution, compiled: Collection[str]) -> StagePrograms:
        return cut(
            self._roles,
            execution.placement,
            devices=execution.stage_devices,
            recompute=execution.recompute,
            rerun=execution.rerun,
            parts_backward=ScheduleKind(execution.schedule).parts_backward,
            compiled=compiled,
        )

    @cached_property
    def _roles(self) -> Roles:
        outputs = self._step.outputs
        return find_roles(
            self._step.graph,
            results=[name for key in self._results for name in _names(outputs.get(key))],
            sparse_gradients=[gradient for gradient in outputs.get("gradients", ()) if isinstance(gradient, tuple)],
            roots=self._step.side_effects if self._side_effects else (),
            seed=self._step.seed,
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
