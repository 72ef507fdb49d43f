"""Write the search result as a plan: stages, the picture's boxes and arrows, predicted figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase, VariableKind
from partitioner.ir.plan import (
    DeviceInfo,
    ModelInfo,
    Objective,
    Origin,
    PlanDocument,
    PlannedEdge,
    PlannedLayer,
    Predicted,
    Stage,
    Strategy,
    Updates,
)
from partitioner.ir.schedule import Schedule
from partitioner.planner.document.memory import planned_memory
from partitioner.planner.document.ops import planned_ops, stages_of_ops
from partitioner.planner.document.stages import staged_stages, variable_users
from partitioner.planner.document.timeline import planned_timeline, planned_transfers
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.model.op_devices import op_devices

_LOSS = "loss"


def plan_document(
    costed: CostedGraph,
    result: SearchResult,
    infos: Sequence[DeviceInfo],
    *,
    model: ModelInfo,
    requested: Strategy,
    objective: Objective,
) -> PlanDocument:
    """The plan of one replica, on its devices."""
    graph, schedule = costed.graph, result.schedule
    names = [placed.name for placed in costed.topology.devices]
    placement = op_devices(graph, result.placement, [info.name for info in infos])
    stages = staged_stages(costed, result) if result.programs else _stages(costed, result, placement)
    stage_of = stages_of_ops(graph, result, [stage.device for stage in stages], names)
    layers = _layers(graph, placement, _compute_shares(costed, result.placement))
    number = {layer.name: index for index, layer in enumerate(layers)}
    boxes = {op.name: number[box] for op in graph.ops if (box := _box(graph, op.name)) in number}
    ops, stage_edges = planned_ops(graph, stages, stage_of, boxes)
    used = list(dict.fromkeys(stage.device for stage in stages))
    return PlanDocument(
        model=model,
        devices=_with_hosts(infos, placement),
        strategy=Strategy.SINGLE if len(used) == 1 else Strategy.LAYER_SPLIT,
        requested_strategy=requested,
        objective=objective,
        num_replicas=1,
        num_stages=len(stages),
        num_microbatches=result.num_microbatches,
        schedule=result.schedule_kind,
        delays_gradients=result.delays_gradients,
        rerun=result.programs.rerun_ops if result.programs else (),
        updates=Updates.SYNC,
        stages=tuple(stages),
        placement=placement,
        predicted=_predicted(schedule, stages, used),
        considered=result.considered,
        timeline=planned_timeline(graph, result, stages),
        transfers=planned_transfers(graph, result),
        memory=planned_memory(costed, schedule, used),
        baselines=result.baselines,
        solver=result.solver,
        uncosted_ops=tuple(
            f"{op_type} x{count} ({100 * costed.uncosted_shares[op_type]:.1f} % of bytes)"
            for op_type, count in costed.uncosted_ops.items()
        ),
        layers=layers,
        edges=_edges(graph),
        stage_edges=stage_edges,
        ops=ops,
        notes=(*result.notes, *_notes(costed)),
    )


def _predicted(schedule: Schedule, stages: Sequence[Stage], used: Sequence[str]) -> Predicted:
    step = schedule.step_seconds
    busy = sum(schedule.busy_seconds[device] for device in used)
    return Predicted(
        step_seconds=step,
        latency_seconds=step,
        bottleneck_stage=max(stages, key=lambda stage: stage.compute_seconds).index,
        bubble_fraction=max(0.0, 1 - busy / (step * len(used))) if step else 0.0,
        peak_bytes={device: use.total_bytes for device, use in schedule.peak.items()},
    )


def _with_hosts(infos: Sequence[DeviceInfo], placement: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
    hosts = sorted(set(placement.values()) - {info.name for info in infos})
    return (
        *infos,
        *(DeviceInfo(name=name, hardware="host", origin=Origin.ASSUMED, memory_bytes=0) for name in hosts),
    )


def _stages(costed: CostedGraph, result: SearchResult, placement: Mapping[str, str]) -> list[Stage]:
    """One stage per used device, in the order the forward pass reaches them."""
    graph, topology = costed.graph, costed.topology
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD and op.layer]
    order = list(dict.fromkeys(result.placement[op.name] for op in [*forward, *graph.ops]))
    users = variable_users(graph)
    home = {variable: result.placement[user] for variable, user in users.items()}
    stages = []
    for index, device in enumerate(order):
        name = topology.devices[device].name
        layers = dict.fromkeys(op.layer for op in forward if result.placement[op.name] == device and op.layer)
        stages.append(
            Stage(
                index=index,
                replica=0,
                device=name,
                layers=tuple(layers),
                num_ops=sum(1 for op in placement if result.placement[op] == device),
                parameter_bytes=sum(
                    v.size_bytes
                    for v in graph.variables
                    if v.kind is VariableKind.PARAMETER and home.get(v.name) == device
                ),
                peak_bytes=result.schedule.peak[name].total_bytes,
                compute_seconds=result.schedule.busy_seconds[name],
                send_bytes=sum(send.size_bytes for send in result.schedule.sends if send.source == name),
            )
        )
    return stages


def _compute_shares(costed: CostedGraph, placement: Mapping[str, int]) -> dict[str, float]:
    """The share of all ops' seconds that the ops of each layer have."""
    seconds: dict[str, float] = {}
    for op, on_devices in zip(costed.graph.ops, costed.seconds, strict=True):
        seconds[op.layer] = seconds.get(op.layer, 0.0) + on_devices[placement[op.name]]
    whole = sum(seconds.values())
    return {layer: own / whole for layer, own in seconds.items()} if whole else {}


def _layers(
    graph: OpGraph, placement: Mapping[str, str], compute_shares: Mapping[str, float]
) -> tuple[PlannedLayer, ...]:
    """A box for every layer that has forward ops of its own, for every input, and for the loss."""
    described = {layer.path: layer for layer in graph.layers}
    parameters: dict[str, int] = {}
    for variable in graph.variables:
        if variable.kind is VariableKind.PARAMETER:
            parameters[variable.layer] = parameters.get(variable.layer, 0) + variable.size_bytes
    devices = _majorities(graph, placement)
    boxes: dict[str, PlannedLayer] = {}
    for op in graph.ops:
        box = _box(graph, op.name)
        if op.phase is not Phase.FORWARD or box is None or box in boxes:
            continue
        layer = described.get(box)
        is_input = op.type == "Placeholder"
        class_name = layer.class_name if layer else "InputLayer" if is_input else "Loss"
        shape = graph.tensor[op.outputs[0]].spec.shape if is_input else ()
        boxes[box] = PlannedLayer(
            name=box,
            class_name=class_name,
            device=devices.get(box) or placement[op.name],
            output_shape=layer.output_shape if layer else str((None, *shape[1:])) if is_input else "",
            parameter_bytes=parameters.get(box, 0),
            compute_share=compute_shares.get(box, 0.0),
        )
    return tuple(boxes.values())


def _majorities(graph: OpGraph, placement: Mapping[str, str]) -> dict[str, str]:
    """Device of most forward ops of each layer."""
    counts: dict[str, Counter[str]] = {}
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            counts.setdefault(op.layer, Counter())[placement[op.name]] += 1
    return {layer: max(count, key=lambda device: (count[device], device)) for layer, count in counts.items()}


def forward_boxes(graph: OpGraph) -> list[str]:
    """Names of the picture's boxes (layers, inputs, the loss) in the order the forward pass reaches them."""
    boxes = (_box(graph, op.name) for op in graph.ops if op.phase is Phase.FORWARD)
    return list(dict.fromkeys(box for box in boxes if box is not None))


def _box(graph: OpGraph, op_name: str) -> str | None:
    op = graph.op[op_name]
    if op.layer:
        return op.layer
    if op.type == "Placeholder":
        return op.name
    return _LOSS if op.inputs and op.phase is Phase.FORWARD else None


def _edges(graph: OpGraph) -> tuple[PlannedEdge, ...]:
    """Bytes from box to box in the forward pass, and of the gradients that come back."""
    forward: dict[tuple[str, str], dict[str, int]] = {}
    backward: dict[tuple[str, str], dict[str, int]] = {}
    for op in graph.ops:
        for name in op.inputs:
            producer = graph.op[graph.tensor[name].producer]
            source, target = _box(graph, producer.name), _box(graph, op.name)
            if source is None or target is None or source == target:
                continue
            size = graph.tensor[name].size_bytes
            if producer.phase is op.phase is Phase.FORWARD:
                forward.setdefault((source, target), {})[name] = size
            elif producer.phase is op.phase is Phase.BACKWARD:
                backward.setdefault((target, source), {})[name] = size
    return tuple(
        PlannedEdge(
            source=source,
            target=target,
            size_bytes=sum(tensors.values()),
            gradient_bytes=sum(backward.get((source, target), {}).values()),
        )
        for (source, target), tensors in forward.items()
    )


def _notes(costed: CostedGraph) -> list[str]:
    notes = []
    assumed = costed.graph.assumed_shapes
    if assumed:
        notes.append(
            f"{len(assumed)} tensors have a size that depends on values; "
            f"the batch size was assumed for it: {_shown(assumed)}"
        )
    trips = [f"{count} of {name}" for name, count in costed.graph.assumed_trips.items()]
    if trips:
        notes.append(f"{len(trips)} loops end when values say so; these trips were assumed: {_shown(trips)}")
    branching = [name for name in costed.graph.runs if costed.graph.op[name].type.endswith(("If", "Case"))]
    if branching:
        notes.append(f"{len(branching)} conditionals count as if they took their dearest branch: {_shown(branching)}")
    hosted = sorted({op.type for op in costed.graph.ops if op.host_only})
    if hosted and any("GPU" in placed.name for placed in costed.topology.devices):
        notes.append(f"ops without a GPU kernel run on the host: {', '.join(hosted)}")
    if tables := [op.title for op in costed.graph.ops if op.takes_table]:
        notes.append(f"lookup tables are on the host, and so is what looks something up there: {_shown(tables)}")
    return notes


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
