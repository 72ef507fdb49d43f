"""The ops that a fused kernel computes under the name of one of them, and the share of its time that each has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op


def ops_of_kernels(costed: CostedGraph, ran: Collection[str], kernels: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The ops that each fused kernel computes, by the op under whose name it ran, which comes first.

    Args:
        costed: The graph that ran, with its costs.
        ran: Names of the ops that ran.
        kernels: By op, the type of the kernel that ran under its name: `_MklNativeConv2DWithBias` under the name of a
            BiasAdd, whose Conv2D then never ran by itself.
    """
    works = {op.name for op, cost in zip(costed.graph.ops, costed.costs, strict=True) if cost.flops}
    found: dict[str, tuple[str, ...]] = {}
    for name, kernel in kernels.items():
        op = costed.graph.op[name]
        if kernel.endswith(op.type):  # the same op, implemented by a library
            continue
        taken_in = tuple(other for other in _taken_in(costed, op, ran) if other in works)
        if taken_in:
            found[name] = (name, *taken_in)
    return found


def shared_seconds(costed: CostedGraph, seconds: Mapping[str, float], kernels: Mapping[str, str]) -> dict[str, float]:
    """Seconds by op; the time of a fused kernel is divided by FLOPs, because it moves its tensors only once.

    Args:
        costed: The graph that ran, with its costs.
        seconds: Seconds of the ops that ran.
        kernels: As for `ops_of_kernels`.
    """
    flops = {op.name: cost.flops for op, cost in zip(costed.graph.ops, costed.costs, strict=True)}
    shares = dict(seconds)
    for name, members in ops_of_kernels(costed, seconds, kernels).items():
        total = sum(flops[member] for member in members)
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
