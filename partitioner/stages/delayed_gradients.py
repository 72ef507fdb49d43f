"""Gradients that no other device waits for, which may wait for those that one does.

Both come from the gradient of a layer's output: the gradient of its input goes on to the layer before, maybe on another
device, and those of its weights only to their updates. A device that computes all of them as they become ready lets the
devices before it wait for work that they do not need. If it computes what they need first, they begin sooner, and the
gradients of weights are computed while they work; until then their inputs are kept. Results that are only reported,
such as the mean of the losses of a batch, wait as well. The same ops compute the same numbers. (Qi et al. call the two
halves B and W, and fill the gaps of pipelines with W: "Zero Bubble Pipeline Parallelism", 2023.)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from partitioner.ir.op_graph import OpGraph, Phase


def delayed_gradients(
    graph: OpGraph, placement: Mapping[str, Hashable], ops: Collection[str] | None = None
) -> dict[str, str]:
    """For each op that is delayed and does not follow another one, the op that it waits for.

    That is the last gradient on its device that another device waits for. Nothing that another device waits for depends
    on an op that is delayed, so no two ops wait for each other.

    Args:
        graph: The step.
        placement: Device of every op, by any name.
        ops: The ops that run; all of them by default.
    """
    names = [op.name for op in graph.ops if ops is None or op.name in ops]
    if len({placement[name] for name in names}) < 2:
        return {}
    runs = frozenset(names)
    sources = {name: [source for source in graph.sources[name] if source in runs] for name in names}
    updates = {name for name in names if graph.op[name].phase is Phase.UPDATE}
    awaited = awaited_elsewhere(sources, placement, patient=updates)
    phase = {name: graph.op[name].phase for name in names}
    last = {placement[name]: name for name in names if name in awaited and phase[name] is Phase.BACKWARD}
    delayed, first = set[str](), dict[str, str]()
    for name in names:
        follows = not (awaited.isdisjoint(sources[name]) and delayed.isdisjoint(sources[name]))
        may_wait = phase[name] is Phase.BACKWARD or (phase[name] is Phase.FORWARD and follows)
        if may_wait and name not in awaited and placement[name] in last:
            if delayed.isdisjoint(sources[name]):
                first[name] = last[placement[name]]
            delayed.add(name)
    return first


def awaited_elsewhere(
    sources: Mapping[str, Collection[str]], where: Mapping[str, Hashable], *, patient: Collection[str] = ()
) -> set[str]:
    """Ops that one in another place waits for, and all that these wait for.

    Args:
        sources: What each op waits for, in an order in which they can run.
        where: The place of each op.
        patient: Ops that need not run soon, so that what they wait for need not either.
    """
    awaited: set[str] = set()
    for name in reversed(list(sources)):
        for source in sources[name]:
            if name in awaited or (where[source] != where[name] and name not in patient):
                awaited.add(source)
    return awaited
