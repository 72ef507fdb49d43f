"""Ask the cost models what every op of a graph costs on every device of a topology."""

from __future__ import annotations

from cost_models.flops import op_cost
from cost_models.specs import OpSpec, TensorSpec
from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op, OpGraph

_HANDLE = TensorSpec(shape=(), dtype="resource")


def cost_graph(graph: OpGraph, topology: Topology) -> CostedGraph:
    """The graph with the cost of each op; op types without a formula are costed by bytes and reported."""
    return CostedGraph(graph=graph, costs=tuple(op_cost(op_spec(graph, op)) for op in graph.ops), topology=topology)


def op_spec(graph: OpGraph, op: Op) -> OpSpec:
    """What a formula sees of an op. Handles, which the graph keeps apart, come first as in TensorFlow."""
    handles = (_HANDLE,) * len(op.variables)
    return OpSpec(
        type=op.type,
        inputs=handles + tuple(graph.tensor[name].spec for name in op.inputs),
        outputs=tuple(graph.tensor[name].spec for name in op.outputs),
        attributes=op.attributes,
    )
