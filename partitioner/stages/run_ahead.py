"""How far a CPU may run ahead of an order that needs little memory.

TensorFlow's executor starts an op as soon as it can. On a CPU it runs last what became ready first, so gradients of
weights that no op waits for may run at the very end, and keep their inputs alive; and which op runs first differs
from process to process. So each op that works waits for ops that are at least some places before it in an order of
ours: forward and backward as traced, and the update of a variable as soon as its gradient is there. Ops that are closer
still run at the same time. For gradients only places of gradients count: updates are chains of small ops, which they
need not wait for one by one. Ops on vectors and scalars are left alone: they are many, and what they keep alive is
little. A GPU runs ops in the order in which they become ready, and is left alone.

So are forward convolutions: what makes an op wait is a control edge, and where TensorFlow 2.21 merges a convolution
that has one with its bias, for oneDNN, it ends the process ("Check failed: pred->in_edges().size() == 2").
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cost_models.formulas_movement import FREE_OP_TYPES
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How strictly ops must keep to the order.

    Attributes:
        ahead: Places before an op, of ops that update no variable, at which others must have ended before it starts. By
            default, about what the backward pass of a block of layers takes: where it was 16, a ResNet50 lost 2 to 11 %
            of its time on two cores (`tests.benchmarks.overhead`), and saved 2 % of its memory.
        ahead_of_updates: The same for an op that updates a variable, of all ops. With 8, two towers and an LSTM took
            5 % longer than Keras' steps on two cores; with 32 as long.
        least_rank: Axes of the tensors that an op reads or makes, below which it is left alone.
    """

    ahead: int = 48
    ahead_of_updates: int = 32
    least_rank: int = 2


ORDER = Order()
"""For a step on one device, which has all cores."""
ORDER_IN_STAGES = Order(ahead=3, ahead_of_updates=4)
"""For stages whose devices work at the same time, so that cores are busy anyway. A pipeline of convolutions over two
devices took a sixth less memory than with 48, and varied by 1 % from process to process instead of 25 %
(`tests.benchmarks.pipeline_memory`)."""


_MERGED_BY_ONEDNN = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "BiasAdd", "Pad"})


def order_among(devices: Iterable[Hashable]) -> Order:
    """The order for a step that runs on these devices."""
    return ORDER if len(set(devices)) == 1 else ORDER_IN_STAGES


def keeps_order(device: str) -> bool:
    """Whether ops on a device keep to an order."""
    return DeviceName.parse(device).type == "CPU"


def run_ahead_limits(
    graph: OpGraph,
    ops: Sequence[str],
    *,
    aliases: Mapping[str, str] | None = None,
    given: Collection[str] = (),
    order: Order | None = None,
    placement: Mapping[str, str] | None = None,
    delayed: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[str]]:
    """For each op, the ops that it must wait for besides its inputs and what it is delayed for.

    Args:
        graph: The graph of the ops.
        ops: Names in graph order.
        aliases: Tensors that are read in place of others.
        given: Tensors that are there before any op runs.
        order: How strictly; `ORDER` by default.
        placement: Where each op is, if not all on one CPU: it waits for those of its own device, and only on CPUs.
        delayed: See `delayed_gradients`.
    """
    needs = _needs(graph, ops, aliases or {}, given)
    for name, sources in (delayed or {}).items():
        needs[name] += sources
    by_device: dict[str, list[str]] = {}
    # One order for all devices, so that no two devices wait for each other.
    for name in _order(graph, ops, needs):
        by_device.setdefault(placement[name] if placement else "", []).append(name)
    limits: dict[str, list[str]] = {}
    for device, own in by_device.items():
        if not device or keeps_order(device):
            limits |= _limits_on(graph, own, needs, order or ORDER)
    return limits


def _limits_on(
    graph: OpGraph, ops: Sequence[str], needs: Mapping[str, Sequence[str]], how: Order
) -> dict[str, list[str]]:
    held: list[str] = []
    lasts: list[int] = []  # by op held, how many of `held` must have ended before it
    starts: list[int] = []  # by place, how many of `held` come before it
    ended: dict[str, frozenset[int]] = {}  # by op, the latest of `held` that have ended when it has
    limits: dict[str, list[str]] = {}
    for name in ops:
        is_held = _is_held(graph, name, how.least_rank)
        waits = graph.op[name].type not in _MERGED_BY_ONEDNN
        if is_held and graph.op[name].phase is Phase.UPDATE:
            last = max(0, len(held) - how.ahead_of_updates + 1)
        else:
            if is_held:
                starts.append(len(held))
            last = starts[-how.ahead] if len(starts) >= how.ahead else 0
        first = lasts[last - 1] if last else 0  # earlier ops end before `last - 1`, in turn
        before = {index for source in needs[name] for index in ended.get(source, ()) if index >= first}
        if is_held:
            for index in range(last - 1, first - 1, -1) if waits else ():
                if index not in before:
                    limits.setdefault(name, []).append(held[index])
                    before |= ended[held[index]]
            before.add(len(held))
            held.append(name)
            lasts.append(last if waits else 0)
        ended[name] = frozenset(before)
    return limits


def _is_held(graph: OpGraph, name: str, least_rank: int) -> bool:
    op = graph.op[name]
    if op.type in FREE_OP_TYPES or op.host_only:  # a GPU may wait for ops that only its host can run
        return False
    return any(len(graph.tensor[tensor].spec.shape) >= least_rank for tensor in (*op.inputs, *op.outputs))


def _needs(
    graph: OpGraph, ops: Sequence[str], aliases: Mapping[str, str], given: Collection[str]
) -> dict[str, list[str]]:
    inside = set(ops).difference(graph.tensor[name].producer for name in given)
    needs = {}
    for name in ops:
        op = graph.op[name]
        made = (graph.tensor[aliases.get(read, read)].producer for read in op.inputs)
        needs[name] = [source for source in dict.fromkeys([*made, *op.control_inputs]) if source in inside]
    return needs


def _order(graph: OpGraph, ops: Sequence[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Ops in graph order, but updates right after the last gradient op that they need."""
    keys = _keys(graph, ops, needs)
    readers: dict[str, list[str]] = {}
    for name in ops:
        for source in needs[name]:
            readers.setdefault(source, []).append(name)
    waiting = {name: len(needs[name]) for name in ops}
    ready = [(keys[name], name) for name in ops if not waiting[name]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for reader in readers.get(name, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (keys[reader], reader))
    return order


def _keys(graph: OpGraph, ops: Sequence[str], needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """By op, the place of the last backward op that it needs, if it is an update; else its own place.

    An update op that needs no backward op (a slot times its decay) has the place of its first reader.
    """
    last: dict[str, int] = {}
    for index, name in enumerate(ops):
        is_backward = graph.op[name].phase is Phase.BACKWARD
        last[name] = index if is_backward else max((last.get(source, -1) for source in needs[name]), default=-1)
    first_reader: dict[str, int] = {}
    for name in reversed(ops):
        place = last[name] if last[name] >= 0 else first_reader.get(name, len(ops))
        for source in needs[name]:
            first_reader[source] = min(first_reader.get(source, len(ops)), place)
    return {
        name: (last[name] if last[name] >= 0 else first_reader.get(name, len(ops)), 1, index)
        if graph.op[name].phase is Phase.UPDATE
        else (index, 0, index)
        for index, name in enumerate(ops)
    }
