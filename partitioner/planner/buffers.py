"""Which tensors share a buffer, which variables live where, and what is kept between phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cost_models.buffers import handed_on
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Phase, VariableKind
from partitioner.planner.costs import op_spec


@dataclass(frozen=True)
class Buffers:
    """Buffers of a costed graph."""

    costed: CostedGraph

    @cached_property
    def passes_on(self) -> Mapping[str, str | None]:
        """For each output without a buffer of its own, the tensor that has it; None for a variable."""
        graph = self.costed.graph
        found: dict[str, str | None] = dict(graph.passed_on)
        for op, cost in zip(graph.ops, self.costed.costs, strict=True):
            given = [None] * len(op.variables) + list(op.inputs)
            for name, index in zip(op.outputs, handed_on(op_spec(graph, op), cost), strict=True):
                if index is not None:
                    found[name] = given[index]
        return found

    @cached_property
    def gradients(self) -> frozenset[str]:
        """Tensors that backward ops hand to update ops, and the buffers these lie in."""
        graph = self.costed.graph
        names = {
            name
            for op in graph.ops
            if op.phase is Phase.UPDATE
            for name in op.inputs
            if graph.op[graph.tensor[name].producer].phase is Phase.BACKWARD
        }
        return frozenset(names | {root for name in names if (root := self.root(name)) is not None})

    def root(self, name: str) -> str | None:
        """The tensor that owns the buffer of `name`; None when a variable does."""
        current: str | None = name
        while current is not None and current in self.passes_on:
            current = self.passes_on[current]
        return current

    @cached_property
    def kept(self) -> Mapping[str, str]:
        """Tensors that outlive their phase (saved for the backward pass, or gradients), by their op.

        A reader that costs nothing and hands nothing on (Shape) runs as soon as it can, and keeps nothing.
        """
        graph = self.costed.graph
        found: dict[str, str] = {}
        for op, cost in zip(graph.ops, self.costed.costs, strict=True):
            is_free = not cost.flops and not cost.moved_bytes
            if is_free and not any(name in self.passes_on for name in op.outputs):
                continue
            for name in op.inputs:
                root = self.root(name)
                if root is not None:
                    maker = graph.op[graph.tensor[root].producer]
                    if maker.phase is not op.phase and maker.type != "Const":
                        found[root] = maker.name
        return found

    @cached_property
    def home_op(self) -> Mapping[str, str]:
        """For each variable, an op that uses it: they share a device."""
        found: dict[str, str] = {}
        for op in self.costed.graph.ops:
            for variable in op.variables:
                found.setdefault(variable, op.name)
        return found


def total_bytes(costed: CostedGraph) -> dict[str, int]:
    """Bytes a step keeps between phases, over all devices: variables, gradients, saved activations."""
    buffers = Buffers(costed)
    graph = costed.graph
    kinds = dict.fromkeys(VariableKind, 0)
    for variable in graph.variables:
        kinds[variable.kind] += variable.size_bytes
    gradients = sum(
        graph.tensor[r].size_bytes for r in buffers.kept if graph.op[buffers.kept[r]].phase is Phase.BACKWARD
    )
    saved = sum(graph.tensor[r].size_bytes for r in buffers.kept if graph.op[buffers.kept[r]].phase is Phase.FORWARD)
    return {
        "parameters": kinds[VariableKind.PARAMETER],
        "gradients": gradients,
        "slots": kinds[VariableKind.SLOT],
        "other state": kinds[VariableKind.STATE],
        "activations": saved,
    }
