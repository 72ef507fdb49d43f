"""The chosen layout beside the best of every family: baselines, bounds over all of them, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partitioner.errors import PartitionError
from partitioner.ir.plan import Baseline, Considered
from partitioner.ir.units import format_seconds
from partitioner.planner.layouts.families import Family
from partitioner.planner.layouts.groups import data_parallel_degrees, has_shared
from partitioner.planner.layouts.layout_planner import Bounds, LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.result import with_bounds
from partitioner.planner.model.tolerances import ROUNDING
from partitioner.planner.pipeline.search_space import MANY
from partitioner.spelling import argument


def with_comparison(
    planner: LayoutPlanner,
    chosen: ParallelLayout,
    alone: ParallelLayout | None,
    families: Sequence[Family],
    eligible: Sequence[ParallelLayout],
    notes: Sequence[str],
    unplanned: Bounds | None = None,
) -> ParallelLayout:
    """The chosen layout with the best of every family as baselines, the bound over all, and notes.

    Args:
        planner: Knows the devices.
        chosen: The layout.
        alone: The best of one replica; None where none fits.
        families: The best of replicas, by strategy.
        eligible: The layouts among which it was chosen.
        notes: Further notes.
        unplanned: Bounds of one replica, where it may be chosen and was not planned.
    """
    result = chosen.result
    simple = (alone or planner.with_baselines(chosen)).result.baselines
    compared = [*simple, *(_of_one_replica(alone, simple) if alone else ()), *map(_of_family, families)]
    solvers = [layout.result.solver for layout in eligible]
    bounds = [solver.lower_bound for solver in solvers]
    of_families = [solver.family_lower_bound for solver in solvers if solver.family_lower_bound is not None]
    replicas = {len(layout.groups) for layout in eligible}
    if unplanned is not None:
        bounds.append(unplanned.lower)
        of_families.append(unplanned.of_family)
        replicas.add(1)
    solver = with_bounds(
        result.solver,
        chosen.step_seconds,
        lower_bound=min(bounds),
        family_lower_bound=min(of_families, default=None),
        family=f"{(alone or chosen).result.solver.family}; replicas: {', '.join(map(str, sorted(replicas)))}",
    )
    status = (alone or chosen).result.solver.status.replace("optimal", "feasible")
    solver = replace(
        solver,
        status="optimal" if solver.gap <= ROUNDING else status,
        seconds=(alone or chosen).result.solver.seconds,
    )
    is_large = len(planner.machines.devices) > MANY
    efficiency = [_efficiency(chosen, simple)] if len(chosen.groups) > 1 or is_large else []
    return replace(
        chosen,
        result=replace(
            result, baselines=tuple(compared), solver=solver, notes=(*result.notes, *filter(None, efficiency), *notes)
        ),
    )


def _of_one_replica(alone: ParallelLayout, simple: Sequence[Baseline]) -> Iterator[Baseline]:
    """The best split, and one device with microbatches where the whole batch does not fit on one device."""
    fitting = [candidate for candidate in alone.result.considered if candidate.fits]
    on_one_device = [candidate for candidate in fitting if candidate.num_stages == 1]
    if on_one_device and not any(baseline.fits for baseline in simple if _is_single(baseline)):
        yield _baseline("single-device", on_one_device)
    if split := [candidate for candidate in alone.result.considered if candidate.num_stages > 1]:
        yield _baseline("layer-split", [candidate for candidate in split if candidate.fits] or split)


def _of_family(family: Family) -> Baseline:
    name = _title(family.layout) + _passing(family.layout.result.num_microbatches)
    return Baseline(name=name, step_seconds=family.layout.step_seconds, fits=family.fits)


def _baseline(name: str, considered: Sequence[Considered]) -> Baseline:
    best = min(considered, key=lambda candidate: candidate.step_seconds)
    return Baseline(name=name + _passing(best.num_microbatches), step_seconds=best.step_seconds, fits=best.fits)


def _is_single(baseline: Baseline) -> bool:
    return baseline.name.startswith("single")


def _title(layout: ParallelLayout) -> str:
    count, size = len(layout.groups), len(layout.groups[0])
    if has_shared(layout.groups):
        return f"mixed {','.join(map(str, data_parallel_degrees(layout.groups)))}"
    return f"mirrored on {count} devices" if size == 1 else f"mixed {count} x {size}"


def _passing(num_microbatches: int) -> str:
    return f" in {num_microbatches} microbatches" if num_microbatches > 1 else ""


def _efficiency(layout: ParallelLayout, baselines: Sequence[Baseline]) -> str:
    single = [baseline for baseline in baselines if _is_single(baseline)]
    if not single or not layout.step_seconds:
        return ""
    best = min(single, key=lambda baseline: (not baseline.fits, baseline.step_seconds))
    speed_up, count = best.step_seconds / layout.step_seconds, layout.num_devices
    had = "" if best.fits else " that had the memory"
    devices = f"{len(layout.groups)} x {count // len(layout.groups)} devices (replicas x devices of each)"
    if has_shared(layout.groups):
        devices = f"{len(layout.groups)} replicas on {count} devices, of which they share some,"
    efficiency = (
        f"{devices} are {speed_up:.1f} times as fast as one device{had}, an efficiency of "
        f"{100 * speed_up / count:.0f} %"
    )
    if len(layout.groups) == 1:
        return efficiency
    when = "when all its backward passes have ended, those of a host first"
    return f"{efficiency}, if peers sum the gradients of a stage {when}"


def naming_replicas(error: PartitionError, families: Sequence[Family], coupling: Sequence[str]) -> PartitionError:
    """The error with the fastest replicas that would fit, were it not for the numbers that they change."""
    fitting = [family for family in families if family.fits]
    if not fitting:
        return error
    best = min(fitting, key=lambda family: family.layout.step_seconds)
    step = format_seconds(best.layout.step_seconds)
    return error.also(
        notes=[f"{best.strategy} replicas would fit, at {step} a step, but change the numbers: {coupling[0]}"],
        help=argument("strategy", best.strategy.value),
    )


def left_out(chosen: ParallelLayout, families: Sequence[Family], coupling: Sequence[str]) -> Iterator[str]:
    """Notes on strategies that would be faster but change the results."""
    for family in families:
        ratio = chosen.step_seconds / family.layout.step_seconds
        if family.fits and ratio > 1 + ROUNDING:
            yield (
                f"the strategy {family.strategy} would be {ratio:.2f} times as fast, but would change the numbers: "
                f"{coupling[0]}"
            )
