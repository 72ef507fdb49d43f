"""Divide the time of a fused kernel among the ops it computes; it runs under the name of a single op."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op


def shared_seconds(costed: CostedGraph, seconds: Mapping[str, float], kernels: Mapping[str, str]) -> dict[str, float]:
    """Seconds by op; the time of a fused kernel is divided by FLOPs, because it moves its tensors only once.

    Args:
        costed: The graph that ran, with its costs.
        seconds: Seconds of the ops that ran.
        kernels: By op, the type of the kernel that ran under its name: `_MklNativeConv2DWithBias` under the name of a
            BiasAdd, whose Conv2D then never ran by itself.
    """
    flops = {op.name: cost.flops for op, cost in zip(costed.graph.ops, costed.costs, strict=True)}
    shares = dict(seconds)
    for name, kernel in kernels.items():
        op = costed.graph.op[name]
        if kernel.endswith(op.type):  # the same op, implemented by a library
            continue
        members = [op.name, *(other for other in _taken_in(costed, op, seconds) if flops[other])]
        total = sum(flops[member] for member in members)
        if len(members) > 1 and total:
            shares |= {member: seconds[name] * flops[member] / total for member in members}
    return shares


def _taken_in(costed: CostedGraph, op: Op, ran: Collection[str]) -> Iterator[str]:
    """Names of ops that never ran, because the kernel of `op` does their work: its producers up to ops that ran; or the
    gradient of a bias, which a kernel for the gradient of a filter also computes."""
    graph = costed.graph
    readers = {reader for name in op.inputs for reader in graph.consumers[name]}
    beside = [name for name in sorted(readers) if graph.op[name].type == "BiasAddGrad" and name not in ran]
    if beside:
        yield from beside
        return
    seen, stack = set[str](), [op]
    while stack:
        for name in stack.pop().inputs:
            maker = graph.op[graph.tensor[name].producer]
            if maker.name not in ran and maker.name not in seen:
                seen.add(maker.name)
                stack.append(maker)
                yield maker.name
