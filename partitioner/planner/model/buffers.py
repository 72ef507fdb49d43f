"""Buffers: which tensors share one, their bytes, where variables live, what is kept between phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cost_models.buffers import handed_on
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Phase, VariableKind
from partitioner.ir.run_order import run_orders
from partitioner.planner.model.kernel_memory import scratch_of_ops, sizes_of_tensors
from partitioner.stages.run_ahead import Order, run_ahead_limits


@dataclass(frozen=True)
class Buffers:
    """Buffers of a costed graph."""

    costed: CostedGraph

    @cached_property
    def passes_on(self) -> Mapping[str, str | None]:
        """For each output without a buffer of its own, the tensor that has it; None for a variable."""
        graph = self.costed.graph
        sources: dict[str, str | None] = dict(graph.passed_on)
        handed: dict[tuple[int, bool], tuple[int | None, ...]] = {}  # few specs differ
        for op, spec, cost in zip(graph.ops, graph.specs, self.costed.costs, strict=True):
            key = id(spec), bool(cost.flops or cost.moved_bytes)
            if key not in handed:
                handed[key] = handed_on(spec, cost)
            for name, index in zip(op.outputs, handed[key], strict=True):
                if index is not None:
                    sources[name] = (*(None for _ in op.variables), *op.inputs)[index]
        if self.costed.fusion is not None:
            sources.update(self.costed.fusion.views)
        return sources

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

        A reader without cost whose output needs its own buffer (Shape) runs at once, and keeps no tensor alive.
        """
        graph = self.costed.graph
        makers: dict[str, str] = {}
        for op, cost in zip(graph.ops, self.costed.costs, strict=True):
            is_free = not cost.flops and not cost.moved_bytes
            if is_free and not any(name in self.passes_on for name in op.outputs):
                continue
            for name in op.inputs:
                root = self.root(name)
                if root is not None:
                    maker = graph.op[graph.tensor[root].producer]
                    if maker.phase is not op.phase and maker.type != "Const":
                        makers[root] = maker.name
        return makers

    @cached_property
    def sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Bytes of every tensor's buffer where the step is one graph, by type of device."""
        return {kind: sizes_of_tensors(self.costed, kind, workspaces=self.costed.graph.training) for kind in self.kinds}

    @cached_property
    def scratch(self) -> Mapping[str, Mapping[str, int]]:
        """By type of device, the bytes that ops take for themselves while they run."""
        return {kind: scratch_of_ops(self.costed, kind) for kind in self.kinds}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Types of the devices."""
        return tuple(dict.fromkeys(DeviceName.parse(placed.name).type for placed in self.costed.topology.devices))

    def orders_on_cpu(self, held: Order, delayed: Mapping[str, Sequence[str]]) -> Sequence[Sequence[str]]:
        """The orders in which CPUs may run the ops, for the given strictness of our own order.

        Args:
            held: The strictness.
            delayed: Gradients that wait for others, as `delayed_gradients` gives them.
        """
        if delayed:
            return list(_orders(self.costed, held, delayed))
        if held not in self._orders:
            self._orders[held] = list(_orders(self.costed, held, {}))
        return self._orders[held]

    @cached_property
    def _orders(self) -> dict[Order, Sequence[Sequence[str]]]:
        return {}

    @cached_property
    def home_op(self) -> Mapping[str, str]:
        """For each variable, an op that uses it: they share a device."""
        users: dict[str, str] = {}
        for op in self.costed.graph.ops:
            for variable in op.variables:
                users.setdefault(variable, op.name)
        return users


def buffers_of(costed: CostedGraph) -> Buffers:
    """The buffers of a costed graph, which are worked out once."""
    known: Buffers = vars(costed).setdefault("buffers", Buffers(costed))
    return known


def _orders(costed: CostedGraph, held: Order, delayed: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    graph = costed.graph
    needs = {name: dict.fromkeys(sources) for name, sources in graph.sources.items()}
    limits = run_ahead_limits(graph, [op.name for op in graph.ops], order=held, delayed=delayed)
    for name, sources in (*limits.items(), *delayed.items()):
        needs[name].update(dict.fromkeys(sources))
    working = [op.name for op, cost in zip(graph.ops, costed.costs, strict=True) if cost.flops or cost.moved_bytes]
    return run_orders([op.name for op in graph.ops], needs, frozenset(working))


def total_bytes(costed: CostedGraph) -> dict[str, int]:
    """Bytes a step keeps between phases, over all devices: variables, gradients, saved activations."""
    buffers = buffers_of(costed)
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
