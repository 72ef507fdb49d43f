"""Group placed ops into maximal pieces on one device each, without cyclic dependencies between pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import networkx as nx


def pieces(
    ops: Sequence[str],
    needs: Mapping[str, Sequence[str]],
    device: Mapping[str, str],
    late: Collection[str] = (),
) -> list[list[str]]:
    """The pieces in an order in which they can run, each with its ops in the order of `ops`.

    Ops of one device with the same number of device changes before them form a piece. Then pieces of a device join
    where no other piece lies on a path between them.

    Args:
        ops: Names in a topological order.
        needs: For each op, those of `ops` that must end before it.
        device: Device of each op.
        late: Ops that need only each other; each goes into the piece of its first reader, not to the start.
    """
    level: dict[str, int] = {}
    for op in ops:
        level[op] = max((level[s] + (device[s] != device[op]) for s in needs[op]), default=0)
    latest: dict[str, int] = {}
    for op in reversed(ops):
        if op in late:
            level[op] = max(level[op], latest.get(op, 0))
        for s in needs[op]:
            latest[s] = min(latest.get(s, level[op]), level[op] - (device[s] != device[op]))
    members: dict[int, list[str]] = {}
    number: dict[tuple[str, int], int] = {}
    for op in ops:
        members.setdefault(number.setdefault((device[op], level[op]), len(number)), []).append(op)
    piece = {op: index for index, names in members.items() for op in names}
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(members)
    graph.add_edges_from((piece[s], piece[op]) for op in ops for s in needs[op] if piece[s] != piece[op])
    where = {index: device[names[0]] for index, names in members.items()}
    depth = {index: level[names[0]] for index, names in members.items()}
    while (pair := _joinable(graph, where, depth)) is not None:
        first, second = pair
        members[first] += members.pop(second)
        nx.contracted_nodes(graph, first, second, self_loops=False, copy=False)
        depth[first] = depth.pop(second)
    position = {op: index for index, op in enumerate(ops)}
    ordered = nx.lexicographical_topological_sort(
        graph, key=lambda index: min(map(position.__getitem__, members[index]))
    )
    return [sorted(members[index], key=position.__getitem__) for index in ordered]


def _joinable(graph: nx.DiGraph, where: Mapping[int, str], depth: Mapping[int, int]) -> tuple[int, int] | None:
    """Two pieces of one device with no other piece on a path between them; the nearest pair."""
    order = sorted(graph.nodes, key=lambda index: (depth[index], index))
    behind = {index: nx.descendants(graph, index) for index in order}
    for position, first in enumerate(order):
        for second in order[position + 1 :]:
            if where[first] == where[second] and not any(
                end in behind[between]
                for start, end in ((first, second), (second, first))
                for between in graph.successors(start)
            ):
                return first, second
    return None
