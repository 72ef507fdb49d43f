"""Put calls of functions that XLA compiles in place of the clusters of a graph."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from partitioner.emit.graph.calls import MUST_COMPILE, Call, CallingGraph, GraphWithCalls
from partitioner.emit.xla.clusters import find_clusters
from partitioner.emit.xla.confirm import Known, objected_nodes, objection
from partitioner.emit.xla.writes import with_held_writes


def with_compiled_calls(
    graph_def: Any,
    devices: Collection[str],
    *,
    fetched: Collection[str] = (),
    kept_out: Collection[str] = (),
    known: Known = lambda _name: None,
) -> GraphWithCalls:
    """Put a call in place of each cluster of a graph.

    Calls on GPUs take and give int32 in memory of the host. XLA's programs want them in memory of the GPU, unless they
    are constants when it compiles; so all others cross as int64.

    Args:
        graph_def: A placed GraphDef.
        devices: The devices whose nodes are compiled.
        fetched: Names of the tensors that are read outside of the graph.
        kept_out: Nodes that are not compiled, whatever they are.
        known: What is known of tensors from outside, and of those that nodes make.
    """
    if not devices:
        return GraphWithCalls(graph_def=graph_def)
    refused: dict[str, str] = {}
    while True:
        found = find_clusters(graph_def, devices, fetched=fetched, kept_out=kept_out, refused=refused)
        held = with_held_writes(graph_def, {name for cluster in found.clusters for name in cluster.nodes})
        if held is not graph_def:
            graph_def = held
            continue
        graph = CallingGraph(graph_def, fetched)
        calls = graph.calls([(cluster.nodes, cluster.device) for cluster in found.clusters], is_compiled=True)
        objected: dict[str, str] = {}
        for call in calls:
            objected |= _objected(graph, call, known)
        if not objected:
            return graph.with_calls(calls)
        refused |= objected


def compiled_function(node: Any) -> str:
    """Name of the function that a NodeDef has compiled; empty if it is no such call."""
    return node.attr["f"].func.name if MUST_COMPILE in node.attr and node.attr[MUST_COMPILE].b else ""


def _objected(graph: CallingGraph, call: Call, known: Known) -> dict[str, str]:
    """The nodes of a call that XLA objects to, and why."""
    op_types = {name: graph.nodes[name].op for name in sorted(call.inside)}
    values = [known(name) for name in call.given]
    values = [
        tf.TensorSpec(value.shape, tf.int64) if name in call.carried and value is not None else value
        for name, value in zip(call.given, values, strict=True)
    ]
    text = objection(call.function, call.device, list(op_types.values()), values)
    return objected_nodes(text, op_types) if text else {}
