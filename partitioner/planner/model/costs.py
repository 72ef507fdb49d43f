"""Ask the cost models what every op of a graph costs on every device of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cost_models.flops import op_cost, unknown
from cost_models.measured import MeasuredDevice
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpCost, OpSpec
from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph


def cost_ops(
    graph: OpGraph,
    topology: Topology,
    measured: Mapping[int, MeasuredDevice] | None = None,
    kernels: Kernels = ONEDNN,
) -> CostedGraph:
    """The graph with the cost of each op.

    Ops whose type has no formula, or has one that needs the rank of a tensor that TensorFlow does not know (what a
    Python function gives), are costed by bytes and reported.

    Args:
        graph: The graph.
        topology: What it is planned for.
        measured: What is known of ops on devices of the topology, by their index.
        kernels: What runs ops on its CPUs.
    """
    costs = graph.of_specs(lambda spec: _cost(graph, spec))
    costed = CostedGraph(graph=graph, costs=costs, topology=topology, kernels=kernels)
    if not measured:
        return costed
    cost_of = {id(spec): cost for spec, cost in zip(graph.specs, costs, strict=True)}
    columns: dict[tuple[int, str, bool], tuple[float, ...]] = {}

    def column(index: int, known: MeasuredDevice, *, crowded: bool) -> tuple[float, ...]:
        device = topology.devices[index].device
        key = id(known), device.name, crowded
        if key not in columns:
            columns[key] = graph.of_specs(
                lambda spec: known.seconds(spec, cost_of[id(spec)], device, spec.compute_dtype, crowded=crowded)
            )
        return columns[key]

    are_known = graph.of_specs(lambda spec: all(known.has(spec) for known in measured.values()))
    return replace(
        costed,
        measured={index: column(index, known, crowded=False) for index, known in measured.items()},
        crowded={index: column(index, known, crowded=True) for index, known in measured.items() if known.crowd > 1},
        measured_ops=frozenset(op.name for op, known in zip(graph.ops, are_known, strict=True) if known),
    )


def _cost(graph: OpGraph, spec: OpSpec) -> OpCost:
    try:
        return op_cost(spec)
    except ValueError:
        if not graph.assumed_shapes:
            raise
        return unknown(spec)
