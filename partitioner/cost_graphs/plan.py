"""Plan a cost graph: solve its max-load problem, and write the answer as a document."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from partitioner.cost_graphs.document import CostGraphInfo, CostGraphPlan, GraphDevice, LoadBaseline, Piece, Transfer
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
from partitioner.ir.plan import SolverInfo
from partitioner.ir.requirements import Requirement
from partitioner.spelling import argument

_PACKAGES = ("partition", "ortools", "numpy")
_ROUNDING = 1e-9


def plan_cost_graph(
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
) -> CostGraphPlan:
    """Plan a cost graph with the smallest largest load that the search finds.

    Args:
        graph: The cost graph to place.
        devices: The devices; by default as many GPUs and CPUs as the file is for.
        name: Name of the graph in the report.
        source: The file it was read from.
        requirements: Pins, forbidden devices and colocation of nodes.
        contiguous: Whether pieces must be contiguous.
        memory_limit: `8GiB`, or a size by device; else GPUs have what the file says, and CPUs no limit.
        time_limit: Seconds for the search.
        work_limit: See `MaxLoadProblem`.
        seed: Same seed, same plan, if the work and not the clock ends the search.
        what_if: Whether to plan anew for better devices too.
        on_progress: Called with objective and bound in the graph's unit, and the seconds so far.

    Raises:
        UsageError: There are no devices, or requirements cannot be read.
        InfeasibleError: It is proved that no placement is allowed.
        TimeLimitError: No plan was found in time.
    """
    request = CostGraphRequest(
        graph=graph,
        places=load_devices(graph, devices, memory_limit),
        requirements=tuple(requirements),
        contiguous=contiguous,
        time_limit=time_limit,
        work_limit=work_limit,
        seed=seed,
    )
    refuse_overfull(request)
    built, result = request.solved(on_progress)
    if result.answer.status == "infeasible":
        raise explained(request)
    if result.answer.assignment is None:
        raise TimeLimitError(
            f"no placement was found in {time_limit:g} s",
            notes=[result.note] if result.note else [],
            help=f"give it more time: {argument('time_limit', 10 * time_limit)}",
        )
    plan = _plan(graph, request, built, result, name=name, source=source)
    if not what_if:
        return plan
    held = {piece.device: piece.memory_bytes for piece in plan.pieces}
    return replace(plan, what_if=gains_of(request, plan.solver.objective, held))


def _plan(
    graph: CostGraph, request: CostGraphRequest, built: BuiltProblem, result: MaxLoadResult, *, name: str, source: str
) -> CostGraphPlan:
    assert result.answer.assignment is not None
    placement = built.placement(result.answer.assignment)
    pieces = _pieces(graph, placement, built, _used_in_order(built, result))
    return CostGraphPlan(
        graph=CostGraphInfo(
            name=name,
            source=source,
            fingerprint=hashlib.sha256(to_json(graph).encode()).hexdigest()[:16],
            num_nodes=len(graph.nodes),
            num_values=len(graph.values),
            unit=graph.unit,
        ),
        contiguous=built.problem.contiguous,
        devices=tuple(
            GraphDevice(name=device.name, kind=device.kind, memory_bytes=device.capacity_bytes)
            for device in built.problem.devices
        ),
        pieces=pieces,
        placement=placement,
        solver=_solver(graph, built, result, max(piece.load for piece in pieces)),
        baselines=_baselines(built),
        requirements=request.requirements,
        descriptions={node.id: node.description for node in graph.nodes},
        edges=tuple(
            Transfer(source=value.source, target=target, size_bytes=round(value.size_bytes))
            for value in graph.values
            for target in value.targets
        ),
        notes=tuple(filter(None, [result.note])),
        versions={package: version(package) for package in _PACKAGES} | {"python": platform.python_version()},
    )


def _used_in_order(built: BuiltProblem, result: MaxLoadResult) -> list[str]:
    """The devices with nodes; in the order of the chain where pieces are contiguous."""
    problem, assignment = built.problem, result.answer.assignment
    assert assignment is not None
    order = (device_order(problem, assignment) if problem.contiguous else None) or range(len(problem.devices))
    holding = set(built.placement(assignment).values())
    return [problem.devices[index].name for index in order if problem.devices[index].name in holding]


def _solver(graph: CostGraph, built: BuiltProblem, result: MaxLoadResult, objective: float) -> SolverInfo:
    """Objective and bound in the file's own figures; a gap below the error of rounding to integers counts as 0."""
    bound = min(objective, result.answer.lower_bound * built.unit)
    if objective - bound <= _ROUNDING * objective:
        bound = objective
    return SolverInfo(
        status="optimal" if bound == objective else result.answer.status,
        objective=objective,
        lower_bound=bound,
        gap=(objective - bound) / objective if objective else 0.0,
        seconds=result.seconds,
        seed=built.problem.seed,
        unit=graph.unit,
        method=result.answer.method,
    )


def _figures(
    graph: CostGraph, placement: Mapping[str, str], built: BuiltProblem
) -> tuple[dict[str, float], dict[str, float]]:
    """Compute and transfer of each device, in the file's own figures rather than in the problem's integers."""
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


def _pieces(
    graph: CostGraph, placement: Mapping[str, str], built: BuiltProblem, used: Sequence[str]
) -> tuple[Piece, ...]:
    compute, transfer = _figures(graph, placement, built)
    nodes_on: dict[str, list[CostNode]] = {device: [] for device in used}
    for node in graph.nodes:
        nodes_on[placement[node.id]].append(node)
    sent_by: dict[str, list[float]] = {device: [] for device in used}
    for value in graph.values:
        home = placement[value.source]
        if any(placement[target] != home for target in value.targets):
            sent_by[home].append(value.size_bytes)
    return tuple(
        Piece(
            device=device,
            nodes=tuple(node.id for node in nodes_on[device]),
            compute=compute[device],
            transfer=transfer[device],
            memory_bytes=math.ceil(math.fsum(node.memory_bytes for node in nodes_on[device])),
            send_bytes=round(math.fsum(sent_by[device])),
        )
        for device in used
    )


def _baselines(built: BuiltProblem) -> tuple[LoadBaseline, ...]:
    """Baselines: all nodes on the first device of each kind."""
    problem = built.problem
    firsts = {device.kind: index for index, device in reversed(list(enumerate(problem.devices)))}
    return tuple(
        LoadBaseline(
            name=f"single-device {DeviceName.parse(problem.devices[index].name).short}",
            load=max(loads(problem, single)) * built.unit,
            fits=not any(violations(problem, single)),
        )
        for index in sorted(firsts.values())
        for single in [(index,) * len(problem.items)]
    )
