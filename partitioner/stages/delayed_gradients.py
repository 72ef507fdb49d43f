"""Gradients that no other device waits for, which may wait for those that one does.

Both come from the gradient of a layer's output: the gradient of its input goes on to the layer before, maybe on another
device, and those of its weights only to their updates. A device that computes all of them as they become ready lets the
devices before it wait for work that they do not need. If it computes what they need first, they begin sooner, and the
gradients of weights are computed while they work; until then their inputs are kept. Results that are only reported,
such as the mean of the losses of a batch, wait as well. The same ops compute the same numbers. (Qi et al. call the two
halves B and W, and fill the gaps of pipelines with W: "Zero Bubble Pipeline Parallelism", 2023.)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from partitioner.ir.op_graph import OpGraph, Phase


def delayed_gradients(
    graph: OpGraph, placement: Mapping[str, Hashable], ops: Collection[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """For each op that is delayed and does not follow another one, the ops that it waits for.

    Those are the gradients on its device that other devices wait for, of those that follow each other the last. Nothing
    that another device waits for depends on an op that is delayed, so no two ops wait for each other.

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
    gradients = [name for name in names if name in awaited and phase[name] is Phase.BACKWARD]
    last = _last(gradients, sources, placement)
    delayed, first = set[str](), dict[str, tuple[str, ...]]()
    for name in names:
        follows = not (awaited.isdisjoint(sources[name]) and delayed.isdisjoint(sources[name]))
        may_wait = phase[name] is Phase.BACKWARD or (phase[name] is Phase.FORWARD and follows)
        if may_wait and name not in awaited and placement[name] in last:
            if delayed.isdisjoint(sources[name]):
                first[name] = last[placement[name]]
            delayed.add(name)
    return first


def _last(
    gradients: Collection[str], sources: Mapping[str, Sequence[str]], placement: Mapping[str, Hashable]
) -> dict[Hashable, tuple[str, ...]]:
    """By device, its gradients that none of its others follows."""
    last: dict[Hashable, tuple[str, ...]] = {}
    own, behind = frozenset(gradients), dict.fromkeys(sources, frozenset[Hashable]())
    for name in reversed(list(sources)):
        device, reached = placement[name], behind[name]
        if name in own and device not in reached:
            last[device] = (name, *last.get(device, ()))
            reached |= {device}
        for source in sources[name]:
            behind[source] |= reached
    return last


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
