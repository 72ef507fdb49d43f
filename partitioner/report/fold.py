"""Fold a graph for a picture: chains, and blocks that repeat. Nodes are numbers in an order of the flow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_LONGEST_BLOCK = 200
_Sources = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Blocks with the same structure that follow each other: nodes `start` to `start + period * count - 1`."""

    start: int
    period: int
    count: int

    @property
    def blocks(self) -> tuple[range, ...]:
        """The nodes of each block."""
        starts = range(self.start, self.end, self.period)
        return tuple(range(start, start + self.period) for start in starts)

    @property
    def end(self) -> int:
        """The node behind the last block."""
        return self.start + self.period * self.count


def repeats(kinds: Sequence[Hashable], sources: _Sources, names: Sequence[str]) -> list[Repeat]:
    """Blocks that repeat, from the first node to the last; among those that start at a node the ones that cover most.

    Node i + p repeats node i if both are of one kind, and what it reads lies p further or is the same. Where blocks
    could be cut at several nodes, they are cut where they read fewest nodes from outside, then where the names of a
    block have the longest beginning in common.

    Args:
        kinds: What must be equal for two nodes to be alike.
        sources: The nodes that each node reads, in ascending order.
        names: What people call each node.
    """
    count = len(kinds)
    longest = min(_LONGEST_BLOCK, count // 2)
    runs = [_alike(kinds, sources, period) for period in range(1, longest + 1)]
    found: list[Repeat] = []
    node = 0
    while node < count:
        times = [run[node] // period + 1 for period, run in enumerate(runs, start=1)]
        best = max(range(longest), key=lambda index: (times[index] > 1, times[index] * (index + 1), -index), default=-1)
        if best < 0 or times[best] == 1:
            node += 1
            continue
        period = best + 1
        spare = runs[period - 1][node] % period
        starts = [range(first, first + period) for first in range(node + period, node + period + spare + 1)]
        # Of the second block: the first one may stand at the edge of the graph.
        second = min(
            starts,
            key=lambda block: (_reads(sources, block), -len(common_beginning(names[block.start : block.stop]))),
        )
        start = second.start - period
        found.append(Repeat(start=start, period=period, count=times[best]))
        node = found[-1].end
    return found


def chains(places: Sequence[Hashable], sources: _Sources) -> list[list[int]]:
    """Runs of nodes at one place that follow each other: only the second reads the first, and it reads nothing else."""
    before = [set(read) for read in sources]
    after: list[set[int]] = [set() for _ in sources]
    for node, read in enumerate(before):
        for source in read:
            after[source].add(node)
    runs: list[list[int]] = []
    open_run: dict[int, list[int]] = {}  # by the run's last node
    for node, read in enumerate(before):
        previous = next(iter(read)) if len(read) == 1 else -1
        run = open_run.get(previous)
        if run and len(after[previous]) == 1 and places[previous] == places[node]:
            del open_run[previous]
            run.append(node)
        else:
            run = [node]
            runs.append(run)
        open_run[node] = run
    return runs


def _alike(kinds: Sequence[Hashable], sources: _Sources, period: int) -> list[int]:
    """For each node, how many nodes from it on are repeated `period` nodes later, without a gap."""
    run = [0] * (len(kinds) + 1)
    for node in range(len(kinds) - period - 1, -1, -1):
        if kinds[node] == kinds[node + period] and _same_reads(sources[node], sources[node + period], period):
            run[node] = run[node + 1] + 1
    return run


def _same_reads(first: Sequence[int], second: Sequence[int], period: int) -> bool:
    return len(first) == len(second) and all(a + period == b or a == b for a, b in zip(first, second, strict=True))


def common_beginning(names: Sequence[str]) -> str:
    """The longest text that all names begin with."""
    first, last = min(names), max(names)
    ends = (index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(ends, min(len(first), len(last)))]


def _reads(sources: _Sources, block: range) -> int:
    """How many nodes a block reads outside of itself."""
    return len({source for node in block for source in sources[node] if source not in block})
