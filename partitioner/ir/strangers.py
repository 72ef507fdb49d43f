"""What a plan from a file names and does not have: devices, replicas, stages, layers. Files may be edited by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.ir.devices import MOST_DEVICES, DeviceName

if TYPE_CHECKING:
    from partitioner.ir.plan import PlanDocument


def refuse_strangers(plan: PlanDocument) -> None:
    """Refuse a plan that names what it does not have.

    Raises:
        ValueError: A device has no name of one, or a stage, a layer or a row is none of the plan's,
            or there is no stage, or a name has two layers.
    """
    for name in _devices(plan):
        DeviceName.parse(name)
    counts = {"replicas": plan.num_replicas, "stages": plan.num_stages, "microbatches": plan.num_microbatches}
    for what, count in counts.items():
        if not 1 <= count <= MOST_DEVICES**2:
            raise ValueError(f"the plan has {count} {what}")
    if not plan.stages:
        raise ValueError("the plan lists no stage")
    for stage in plan.stages:
        if not (0 <= stage.replica < plan.num_replicas and 0 <= stage.index < plan.num_stages):
            raise ValueError(f"stage {stage.index} of replica {stage.replica} is none of the plan's")
    if len({layer.name for layer in plan.layers}) < len(plan.layers):
        raise ValueError("two layers of the plan share a name")
    ends = {end for edge in plan.edges for end in (edge.source, edge.target)}
    if unknown := ends - {layer.name for layer in plan.layers}:
        raise ValueError(f"an edge of the plan names the unknown layer {min(unknown)!r}")
    plan.ops.check(num_layers=len(plan.layers), num_stages=plan.num_stages)


def _devices(plan: PlanDocument) -> set[str]:
    """Every device that a plan names; the target of a sum of gradients is empty."""
    names = {info.name for info in plan.devices} | set(plan.placement.values()) | set(plan.predicted.peak_bytes)
    names |= {part.device for part in (*plan.stages, *plan.layers, *plan.timeline, *plan.memory)}
    names |= {end for bar in plan.transfers for end in (bar.source, bar.target) if end}
    names |= {end for link in plan.links for pair in link.pairs for end in pair}
    names |= {name for requirement in plan.requirements for name in requirement.devices}
    for ran in (plan.verification, plan.measured):
        names |= {name for pair in (ran.ran_on if ran else {}).items() for name in pair}
    return names | {bar.device for bar in (plan.measured.timeline if plan.measured else ())}
