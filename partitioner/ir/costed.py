"""The op graph with what each op costs and the hardware it may run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from cost_models.roofline import op_seconds
from cost_models.specs import OpCost
from cost_models.topology import Topology
from partitioner.ir.op_graph import OpGraph


@dataclass(frozen=True, kw_only=True)
class CostedGraph:
    """An op graph with one cost per op (same order) and the topology it is planned for."""

    graph: OpGraph
    costs: tuple[OpCost, ...]
    topology: Topology

    def __post_init__(self) -> None:
        if len(self.costs) != len(self.graph.ops):
            raise ValueError(f"{len(self.costs)} costs for {len(self.graph.ops)} ops")

    @cached_property
    def seconds(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of each op (row, graph order) on each device of the topology (column)."""
        devices = [placed.device for placed in self.topology.devices]
        memo: dict[object, tuple[float, ...]] = {}
        rows = []
        for op, cost in zip(self.graph.ops, self.costs, strict=True):
            dtype = self.compute_dtype(op.name)
            key = (cost, dtype)
            if key not in memo:
                memo[key] = tuple(op_seconds(cost, device, dtype) for device in devices)
            rows.append(memo[key])
        return tuple(rows)

    def compute_dtype(self, op_name: str) -> str:
        """The dtype whose peak rate bounds the op: the first floating one it reads or writes."""
        op = self.graph.op[op_name]
        dtypes = [self.graph.tensor[name].spec.dtype for name in (*op.inputs, *op.outputs)]
        return next((dtype for dtype in dtypes if "float" in dtype), "float32")

    @cached_property
    def uncosted_ops(self) -> dict[str, int]:
        """How often each op type without a cost formula occurs."""
        found: dict[str, int] = {}
        for op, cost in zip(self.graph.ops, self.costs, strict=True):
            if not cost.costed:
                found[op.type] = found.get(op.type, 0) + 1
        return dict(sorted(found.items()))

    def to_networkx(self) -> nx.DiGraph:
        """The op graph with `flops`, `moved_bytes`, `seconds` on nodes and `size_bytes` on edges."""
        graph = self.graph.to_networkx()
        for op, cost, seconds in zip(self.graph.ops, self.costs, self.seconds, strict=True):
            graph.nodes[op.name].update(flops=cost.flops, moved_bytes=cost.moved_bytes, seconds=seconds)
        for _, _, edge in graph.edges(data=True):
            edge["size_bytes"] = sum(self.graph.tensor[name].size_bytes for name in edge["tensors"])
        return graph
