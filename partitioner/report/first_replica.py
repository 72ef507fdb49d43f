"""Of many equal replicas, reports and pictures show only the first."""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.plan import PlanDocument, Stage

_MOST_REPLICAS = 4


def shows_first_only(plan: PlanDocument) -> bool:
    """Whether replicas are too many to show each."""
    return plan.num_replicas > _MOST_REPLICAS


def replica_names(plan: PlanDocument, stage: Stage) -> str:
    """`replica 1`, or where several share the stage `replicas 0, 2`; `all replicas`."""
    replicas = plan.replicas_of(stage)
    if len(replicas) == 1:
        return f"replica {replicas[0]}"
    if len(replicas) == plan.num_replicas:
        return "all replicas"
    return f"replicas {', '.join(map(str, replicas))}"


def of_first_replica(plan: PlanDocument) -> PlanDocument:
    """A plan with the stages of its first replica, and with the memory of their devices."""
    stages = tuple(stage for stage in plan.stages if stage.replica == 0)
    devices = {stage.device for stage in stages}
    return replace(plan, stages=stages, memory=tuple(memory for memory in plan.memory if memory.device in devices))
