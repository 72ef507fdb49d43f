"""Whether the unplaced model can run on the host, and for how many steps: it may not fit on any of the devices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cost_models.flops import op_cost
from cost_models.specs import OpSpec
from partitioner.emit.cluster.runtime import num_cores
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import format_bytes

REFERENCE_SECONDS = 600.0
"""How long the unplaced model may be expected to run."""
_FLOPS_PER_CORE = 10e9
"""A cautious rate of a host core: oneDNN reaches several times this in large products, small ops far less."""
_RUNS = 2
"""The unplaced model and its control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReference:
    """How the unplaced model is run.

    Attributes:
        num_steps: Training steps; 0 where it is not run.
        note: Why there are fewer than were asked for, or none; empty if neither.
    """

    num_steps: int
    note: str = ""


def host_reference(graph: OpGraph, plan: PlanDocument, num_steps: int) -> HostReference:
    """How many steps of the unplaced model fit into the memory of the host and into `REFERENCE_SECONDS`.

    Args:
        graph: The step.
        plan: Its plan, which says how much memory the parts of the model need.
        num_steps: Training steps that were asked for; for inference 1.
    """
    uses = [use for use in plan.memory if use.device in plan.devices_of(0)]
    needed = sum(use.peak_bytes + (plan.num_microbatches - 1) * use.activation_bytes for use in uses)
    free = _free_bytes()
    if needed > free:
        return HostReference(
            num_steps=0,
            note=f"the unplaced model needs about {format_bytes(needed)} of host memory and {format_bytes(free)} are "
            "free: numbers were not compared",
        )
    cores = num_cores()
    flops = sum(_flops(graph))
    step_seconds = flops / (_FLOPS_PER_CORE * cores)
    # A first step gives the gradients.
    possible = int(REFERENCE_SECONDS / (_RUNS * step_seconds)) - 1 if step_seconds else num_steps
    if possible >= num_steps:
        return HostReference(num_steps=num_steps)
    if possible < 1:
        return HostReference(
            num_steps=0,
            note=f"the unplaced model would take about {step_seconds:,.0f} s a step on {cores} cores of the host: "
            "numbers were not compared",
        )
    return HostReference(
        num_steps=possible,
        note=f"{possible} steps instead of {num_steps}, as the unplaced model takes about {step_seconds:,.0f} s for "
        f"one on {cores} cores of the host",
    )


def _flops(graph: OpGraph) -> list[float]:
    def flops(spec: OpSpec) -> float:
        try:
            return op_cost(spec).flops
        except ValueError:
            return 0.0

    return list(graph.of_specs(flops))


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
