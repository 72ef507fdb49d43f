"""Plan a cost graph: solve its max-load problem and write what was found as the fields of a plan."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partitioner.cost_graphs.explain import explained, refuse_overfull
from partitioner.cost_graphs.formulate import BuiltProblem
from partitioner.cost_graphs.graph import CostGraph, CostNode
from partitioner.cost_graphs.request import CostGraphRequest, load_devices
from partitioner.cost_graphs.solver.client import MaxLoadResult
from partitioner.cost_graphs.solver.loads import device_order, loads, violations
from partitioner.cost_graphs.what_if import what_if as gains_of
from partitioner.errors import TimeLimitError
from partitioner.ir.devices import DeviceName
from partitioner.ir.json import to_json
from partitioner.ir.plan import (
    Baseline,
    CostGraphInfo,
    DeviceInfo,
    ModelInfo,
    Origin,
    PlannedEdge,
    PlannedLayer,
    Predicted,
    SolverInfo,
    Stage,
    Strategy,
)
from partitioner.ir.requirements import Requirement

_SECONDS = {"ms": 1e-3, "s": 1.0}
_ROUNDING = 1e-9


def _plan_fields(
    graph: CostGraph,
    devices: Sequence[DeviceName],
    *,
    name: str,
    source: str,
    requirements: Sequence[Requirement] = (),
    contiguous: bool = False,
    memory_limit: str | None = None,
    time_limit: float = 60.0,
    work_limit: float | None = None,
    seed: int = 0,
    what_if: bool = False,
    on_progress: Callable[[float, float, float], None] = lambda _objective, _bound, _seconds: None,
) -> dict[str, Any]:
    """The fields of the plan with the smallest largest load that was found.

    Args:
        graph: What to place.
        devices: Where; without any, as many GPUs and CPUs as the file is for.
        name: Of the graph, for people.
        source: Where it was read.
        requirements: What nodes may be on and with.
        contiguous: Whether pieces must be contiguous.
        memory_limit: As `--memory-limit`; else GPUs have what the file says, and CPUs no limit.
        time_limit: Seconds for the search.
        work_limit: See `MaxLoadProblem`.
        seed: Same seed, same plan, if the work and not the clock ends the search.
        what_if: Whether to plan anew for better devices too.
        on_progress: Is told objective and bound in the graph's unit, and the seconds so far.

    Raises:
        UsageError: There are no devices, or requirements cannot be read.
        InfeasibleError: It is proved that no placement is allowed.
        TimeLimitError: None was found in time.
    """
    asked = CostGraphRequest(
        graph=graph,
        places=load_devices(graph, devices, memory_limit),
        requirements=tuple(requirements),
        contiguous=contiguous,
        time_limit=time_limit,
        work_limit=work_limit,
        seed=seed,
    )
    refuse_overfull(asked)
    built, result = asked.solved(on_progress)
    if result.answer.status == "infeasible":
        raise explained(asked)
    if result.answer.assignment is None:
        raise TimeLimitError(
            f"no placement was found in {time_limit:g} s",
            notes=[result.note] if result.note else [],
            help=f"give it more time: --time-limit {10 * time_limit:g}",
        )
    fields = _fields(graph, built, result, name=name, source=source)
    fields["requirements"] = asked.requirements
    if what_if:
        fields["what_if"] = gains_of(asked, fields["solver"].objective, fields["predicted"].peak_bytes)
    return fields


def _fields(graph: CostGraph, built: BuiltProblem, result: MaxLoadResult, *, name: str, source: str) -> dict[str, Any]:
    answer, problem = result.answer, built.problem
    assert answer.assignment is not None
    placement = built.placement(answer.assignment)
    devices = [device.name for device in problem.devices]
    order = (device_order(problem, answer.assignment) if problem.contiguous else None) or range(len(devices))
    holding = set(placement.values())
    used = [devices[index] for index in order if devices[index] in holding]
    compute, transfer = _figures(graph, placement, built)
    objective = max(compute[device] + transfer[device] for device in used)
    bound = min(objective, answer.lower_bound * built.unit)
    if objective - bound <= _ROUNDING * objective:
        bound = objective
    seconds = _SECONDS[graph.unit]
    stages = _stages(graph, placement, used, compute, seconds)
    busy = sum(compute[device] + transfer[device] for device in used)
    loads_of = {stage.device: compute[stage.device] + transfer[stage.device] for stage in stages}
    return {
        "model": ModelInfo(
            source=source,
            name=name,
            fingerprint=hashlib.sha256(to_json(graph).encode()).hexdigest()[:16],
            num_ops=len(graph.nodes),
            num_parameters=0,
            batch_size=0,
            training=any(node.is_backward for node in graph.nodes),
        ),
        "devices": tuple(
            DeviceInfo(
                name=device.name, hardware=device.kind, origin=Origin.FILE, memory_bytes=device.capacity_bytes or 0
            )
            for device in problem.devices
        ),
        "strategy": Strategy.SINGLE if len(used) == 1 else Strategy.LAYER_SPLIT,
        "num_replicas": 1,
        "num_stages": len(stages),
        "num_microbatches": 1,
        "schedule": "sequential",
        "updates": "sync",
        "stages": stages,
        "placement": placement,
        "predicted": Predicted(
            step_seconds=objective * seconds,
            latency_seconds=0.0,
            bottleneck_stage=max(stages, key=lambda stage: loads_of[stage.device]).index,
            bubble_fraction=1 - busy / (objective * len(used)) if objective else 0.0,
            peak_bytes={stage.device: stage.peak_bytes for stage in stages},
        ),
        "baselines": _baselines(built, seconds),
        "solver": SolverInfo(
            status="optimal" if bound == objective else answer.status,
            objective=objective,
            lower_bound=bound,
            gap=(objective - bound) / objective if objective else 0.0,
            seconds=result.seconds,
            seed=problem.seed,
            unit=graph.unit,
            method=answer.method,
        ),
        "layers": tuple(
            PlannedLayer(name=node.id, class_name=node.description, device=placement[node.id]) for node in graph.nodes
        ),
        "edges": tuple(
            PlannedEdge(source=value.source, target=target, size_bytes=round(value.size_bytes))
            for value in graph.values
            for target in value.targets
        ),
        "notes": tuple(filter(None, [result.note])),
        "cost_graph": CostGraphInfo(
            contiguous=problem.contiguous,
            num_values=len(graph.values),
            compute={device: compute[device] for device in used},
            transfer={device: transfer[device] for device in used},
        ),
    }


def _figures(
    graph: CostGraph, placement: Mapping[str, str], built: BuiltProblem
) -> tuple[dict[str, float], dict[str, float]]:
    """What each device computes and moves, in the file's own figures rather than in the problem's integers."""
    cpus = {device.name for device in built.problem.devices if device.is_cpu}
    compute: dict[str, list[float]] = {device.name: [] for device in built.problem.devices}
    transfer: dict[str, list[float]] = {device.name: [] for device in built.problem.devices}
    for node in graph.nodes:
        device = placement[node.id]
        compute[device].append(node.cpu_cost if device in cpus else node.accelerator_cost)
    for value in graph.values:
        touched = {placement[value.source], *(placement[target] for target in value.targets)}
        if len(touched) > 1:
            for device in touched - cpus:
                transfer[device].append(value.cost)
    return {d: math.fsum(costs) for d, costs in compute.items()}, {d: math.fsum(c) for d, c in transfer.items()}


def _stages(
    graph: CostGraph, placement: Mapping[str, str], used: Sequence[str], compute: Mapping[str, float], seconds: float
) -> tuple[Stage, ...]:
    stages = []
    nodes_on: dict[str, list[CostNode]] = {device: [] for device in used}
    for node in graph.nodes:
        nodes_on[placement[node.id]].append(node)
    sent_by: dict[str, list[float]] = {device: [] for device in used}
    for value in graph.values:
        home = placement[value.source]
        if any(placement[target] != home for target in value.targets):
            sent_by[home].append(value.size_bytes)
    for index, device in enumerate(used):
        nodes = nodes_on[device]
        stages.append(
            Stage(
                index=index,
                replica=0,
                device=device,
                layers=tuple(node.id for node in nodes),
                num_ops=len(nodes),
                parameter_bytes=0,
                peak_bytes=math.ceil(math.fsum(node.memory_bytes for node in nodes)),
                compute_seconds=compute[device] * seconds,
                send_bytes=round(math.fsum(sent_by[device])),
            )
        )
    return tuple(stages)


def _baselines(built: BuiltProblem, seconds: float) -> tuple[Baseline, ...]:
    """Everything on the first device of each kind."""
    problem = built.problem
    firsts = {device.kind: index for index, device in reversed(list(enumerate(problem.devices)))}
    return tuple(
        Baseline(
            name=f"single-device {DeviceName.parse(problem.devices[index].name).short}",
            step_seconds=max(loads(problem, single)) * built.unit * seconds,
            fits=not any(violations(problem, single)),
        )
        for index in sorted(firsts.values())
        for single in [(index,) * len(problem.items)]
    )


def plan_cost_graph(graph: CostGraph, devices: Sequence[DeviceName], **asked: Any) -> Any:
    """The plan."""
    from importlib.metadata import version

    from partitioner.cost_graphs.document import CostGraphPlan

    versions = {package: version(package) for package in ("partition", "ortools", "numpy")}
    return CostGraphPlan(versions=versions, **_plan_fields(graph, devices, **asked))
