"""Give each op its share of a kernel that did the work of several, and that ran under the name of one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op


def shared_seconds(costed: CostedGraph, seconds: Mapping[str, float], kernels: Mapping[str, str]) -> dict[str, float]:
    """Seconds by op, where those of fused kernels are shared by FLOPs: what is fused moves its tensors once for all.

    Args:
        costed: The graph that ran, with its costs.
        seconds: Of the ops that ran.
        kernels: By op, the type of what ran under its name: `_MklNativeConv2DWithBias` under that of a BiasAdd, whose
            Conv2D then never ran by itself.
    """
    flops = {op.name: cost.flops for op, cost in zip(costed.graph.ops, costed.costs, strict=True)}
    found = dict(seconds)
    for name, kernel in kernels.items():
        op = costed.graph.op[name]
        if kernel.endswith(op.type):  # the same op, implemented by a library
            continue
        members = [op.name, *(other for other in _taken_in(costed, op, seconds) if flops[other])]
        total = sum(flops[member] for member in members)
        if len(members) > 1 and total:
            found |= {member: seconds[name] * flops[member] / total for member in members}
    return found


def _taken_in(costed: CostedGraph, op: Op, ran: Collection[str]) -> Iterator[str]:
    """Names of ops that never ran, because the kernel of `op` does their work: what feeds it, with nothing in between
    that ran; or the gradient of a bias, which a kernel for the gradient of a filter sums up as it goes."""
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
