"""From a traced step with costs to its plan: choose a layout, and write it as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from partitioner.deadline import SEARCH_SECONDS, search_seconds
from partitioner.errors import InfeasibleError
from partitioner.ir.plan import CostsInfo, DeviceInfo, JitCompile, ModelInfo, Objective, Origin, PlanDocument
from partitioner.ir.requirements import Requirement
from partitioner.ir.step import CapturedStep
from partitioner.planner.diagnose.explain import explained
from partitioner.planner.diagnose.what_if import what_if
from partitioner.planner.document.assemble import plan_document
from partitioner.planner.document.async_updates import with_async_updates
from partitioner.planner.document.compilation import with_compilation
from partitioner.planner.document.inferred_ops import inferred_ops
from partitioner.planner.document.links import link_infos
from partitioner.planner.document.replicated import replicated, sends_of_all
from partitioner.planner.layouts.choose import LayoutRequest, choose_layout
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.layouts.search_progress import SILENT, SearchProgress, Tell
from partitioner.planner.model.step_costs import StepCosts
from partitioner.planner.pipeline.options import microbatch_notes
from partitioner.stages.programs import StageCutter
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """The input of planning; it has or gives every figure of the step, so that planning knows no TensorFlow.

    Attributes:
        model: The plan's entry for the model.
        step: The traced step; its TensorFlow graph is not used.
        costs: Its ops by number of rows, on every device.
        infos: The plan's entries for the devices.
        layout: Which layouts may be chosen.
        schedules: Schedules to choose from.
        recompute: Whether stages may, must or must not recompute.
        objective: Whether the step time or the largest peak is minimised.
        requirements: Allowed devices and colocations of ops.
        max_staleness: Of asynchronous updates; None where updates are synchronous.
        time_limit_seconds: For tracing and the search; None if there is no limit.
        tracing_seconds: The seconds of it that tracing took.
        seed: Of the solver.
        what_if: Whether to say what a better machine would gain.
        cost_source: Where the costs come from, for the record.
        named_link: Catalogue name of the links, if one was given.
        is_described: Whether a topology describes the links.
        notes: Further notes on the costs.
        jit_compile: Whether XLA compiles what devices run.
        uncompiled: Of ops that it cannot compile, why.
    """

    model: ModelInfo
    step: CapturedStep
    costs: StepCosts
    infos: tuple[DeviceInfo, ...]
    layout: LayoutRequest
    schedules: tuple[ScheduleKind, ...]
    recompute: Literal["auto", "none", "all"]
    objective: Objective
    requirements: tuple[Requirement, ...]
    max_staleness: int | None
    time_limit_seconds: float | None
    tracing_seconds: float
    seed: int
    what_if: bool
    cost_source: str
    named_link: str | None
    is_described: bool
    notes: tuple[str, ...] = ()
    jit_compile: JitCompile = JitCompile.OFF
    uncompiled: Mapping[str, str] = field(default_factory=dict)


def plan_step(problem: PlanningProblem, tell: Tell = lambda _text, _fraction: None) -> PlanDocument:
    """Plan the step: the best layout, as a document.

    Args:
        problem: The input.
        tell: Told of the best step so far and its bound.

    Raises:
        OutOfMemoryError: Nothing fits; `explain_infeasibility` says why.
        InfeasibleError: Requirements contradict each other or the strategy.
        TimeLimitError: No layout that fits was found in time.
        UsageError: The step, the requirements or the strategy do not go with the devices.
    """
    seconds = search_seconds(problem.time_limit_seconds, problem.tracing_seconds)
    planner = _layout_planner(problem, SearchProgress(tell, seconds))
    layout = choose_layout(problem.layout, planner, seconds)
    gains = what_if(planner, partial(choose_layout, problem.layout), layout) if problem.what_if else ()
    return replace(_document(problem, layout), what_if=gains)


def explain_infeasibility(error: OutOfMemoryError, problem: PlanningProblem) -> InfeasibleError:
    """The error with what is missing, the fewest requirements and limits that conflict, and changes that help."""
    planner = _layout_planner(problem)
    groups = problem.layout.groups(planner.machines, planner.batch_size)
    return explained(error, planner, partial(choose_layout, problem.layout), groups)


def _layout_planner(problem: PlanningProblem, progress: SearchProgress = SILENT) -> LayoutPlanner:
    return LayoutPlanner(
        machines=problem.costs.machines,
        batch_size=problem.model.batch_size,
        costed=problem.costs.on,
        programs=StageCutter(problem.step, results=problem.step.results),
        counts=problem.layout.counts,
        schedules=problem.schedules,
        recompute=problem.recompute,
        objective=problem.objective,
        requirements=problem.requirements,
        time_limit_seconds=problem.time_limit_seconds or SEARCH_SECONDS,
        is_limited=problem.time_limit_seconds is not None,
        seed=problem.seed,
        progress=progress,
    )


def _document(problem: PlanningProblem, layout: ParallelLayout) -> PlanDocument:
    """The plan of a layout: of one replica, then of all, then with asynchronous updates."""
    groups, result, measured = layout.groups, layout.result, problem.costs.measured
    infos = [
        replace(info, origin=Origin.MEASURED) if index in measured else info for index, info in enumerate(problem.infos)
    ]
    plan = plan_document(
        layout.costed,
        result,
        [infos[index] for index in groups[0]],
        model=problem.model,
        requested=problem.layout.strategy,
        objective=problem.objective,
    )
    if len(infos) > len(groups[0]):
        plan = replicated(plan, result, infos, groups)
    if problem.max_staleness is not None:
        plan = with_async_updates(plan, problem.max_staleness)
    plan = with_compilation(plan, problem.jit_compile, problem.uncompiled, problem.step.graph)
    sends = sends_of_all(result, infos, groups)
    asked = problem.layout.microbatches
    return replace(
        plan,
        costs=CostsInfo(
            source=problem.cost_source,
            measured_share=layout.costed.measured_share,
            inferred_ops=inferred_ops(layout.costed),
        ),
        requirements=problem.requirements,
        links=link_infos(problem.costs.machines, sends, is_described=problem.is_described, named=problem.named_link),
        notes=(
            *plan.notes,
            *problem.notes,
            *microbatch_notes(problem.step, result.num_microbatches, asked, num_replicas=len(groups)),
        ),
    )
