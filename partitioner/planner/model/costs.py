"""Cost every op of a graph on every device of a topology by the cost models."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cached_property
from operator import add

from cost_models.flops import op_cost, unknown
from cost_models.measured import MeasuredDevice
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpCost, OpSpec
from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.op_seconds import seconds_of_sums
from partitioner.planner.model.fusion import Fuser


def cost_ops(
    graph: OpGraph,
    topology: Topology,
    measured: Mapping[int, MeasuredDevice] | None = None,
    kernels: Kernels = ONEDNN,
    *,
    compiled: Container[str] = (),
) -> CostedGraph:
    """The graph with the cost of each op.

    Args:
        graph: The graph.
        topology: The devices and links it is planned for.
        measured: Measured costs of ops, by index of the device in the topology.
        kernels: The kernels that TensorFlow chooses for its ops.
        compiled: Names of the ops that XLA compiles where they run on a GPU. With measured ops, or a device among them
            whose multiprocessors are not known, such as a CPU, each op stays a kernel.
    """
    return GraphCosts(graph, compiled).on(topology, measured, kernels)


class GraphCosts:
    """The costs of the ops of a graph, which are the same on all devices, and their kernels if XLA compiles them.

    Ops are costed by bytes and reported where their type has no formula, or where the formula needs the rank of a
    tensor that TensorFlow does not know (the result of a Python function).

    Args:
        graph: The graph.
        compiled: Names of the ops that XLA compiles where they run on a GPU.
        like: The same step with another number of rows: its kernels consist of the same ops.
    """

    def __init__(self, graph: OpGraph, compiled: Container[str] = (), like: GraphCosts | None = None) -> None:
        self.graph, self._compiled, self._like = graph, compiled, like
        self.costs = graph.of_specs(lambda spec: _cost(graph, spec))

    @cached_property
    def _fuser(self) -> Fuser:
        if self._like is not None:
            return self._like._fuser.resized(self.graph, self.costs)
        return Fuser(self.graph, self.costs, self._compiled)

    @cached_property
    def fusion(self) -> Fusion:
        """The groups of ops that become kernels."""
        return self._fuser.result()

    def on(
        self,
        topology: Topology,
        measured: Mapping[int, MeasuredDevice] | None = None,
        kernels: Kernels = ONEDNN,
        sums: tuple[str, ...] = (),
    ) -> CostedGraph:
        """The graph with its costs on some devices; arguments as for `cost_ops` and `CostedGraph`."""
        graph, costs = self.graph, self.costs
        are_known = not measured and all(placed.device.multiprocessors for placed in topology.devices)
        fusion = self.fusion if self._compiled and are_known else None
        costed = CostedGraph(graph=graph, costs=costs, topology=topology, kernels=kernels, fusion=fusion, sums=sums)
        return _with_measured(costed, measured) if measured else costed


def _with_measured(costed: CostedGraph, measured: Mapping[int, MeasuredDevice]) -> CostedGraph:
    graph = costed.graph
    cost_of = {id(spec): cost for spec, cost in zip(graph.specs, costed.costs, strict=True)}
    columns: dict[tuple[int, str, bool], tuple[float, ...]] = {}

    def column(index: int, measurement: MeasuredDevice, *, crowded: bool) -> tuple[float, ...]:
        device = costed.topology.devices[index].device
        key = id(measurement), device.name, crowded

        def seconds(spec: OpSpec, cost: OpCost) -> float:
            return measurement.seconds(spec, cost, device, spec.compute_dtype, crowded=crowded)

        if key not in columns:
            ops = graph.of_specs(lambda spec: seconds(spec, cost_of[id(spec)]))
            columns[key] = tuple(map(add, ops, seconds_of_sums(graph, costed.sums, seconds)))
        return columns[key]

    are_measured = graph.of_specs(lambda spec: all(device.has(spec) for device in measured.values()))
    return replace(
        costed,
        measured={index: column(index, device, crowded=False) for index, device in measured.items()},
        crowded={index: column(index, device, crowded=True) for index, device in measured.items() if device.crowd > 1},
        measured_ops=frozenset(op.name for op, is_measured in zip(graph.ops, are_measured, strict=True) if is_measured),
        measured_calls={index: device.call for index, device in measured.items() if device.call is not None},
    )


def _cost(graph: OpGraph, spec: OpSpec) -> OpCost:
    try:
        return op_cost(spec)
    except ValueError:
        if not graph.assumed_shapes:
            raise
        return unknown(spec)
