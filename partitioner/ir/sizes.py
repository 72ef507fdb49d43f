"""Sizes: tensors that are known once shapes are.

XLA knows every shape when it compiles. What is made of shapes and constants alone is then a constant, and of a tensor
of which only the shape is read nothing is computed. So a compiled program can repeat nodes to know sizes, in place of
being given them: it takes no time, where handing one over takes a copy between device and host (28 us on an H100).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from partitioner.ir.graph_def import producer, tensor_name

READS_SHAPE = frozenset({"Rank", "Shape", "ShapeN", "Size", "VariableShape", "ZerosLike", "OnesLike"})
"""Types of ops that read the shapes of their inputs, and no values."""


# Loops and branches take long to compile; of the others, the shape follows from values.
_NOT_REPEATED = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase",
                           "Where", "Unique", "UniqueV2", "DynamicPartition"})  # fmt: skip


class Node(NamedTuple):
    """An op or a node: its name, its type, and the tensors that it reads."""

    name: str
    type: str
    reads: Sequence[str]

    @classmethod
    def of(cls, node: Any) -> Node:
        """That of a NodeDef."""
        return cls(node.name, node.op, [tensor_name(read) for read in node.input if not read.startswith("^")])


def sizes_among(nodes: Iterable[Node]) -> frozenset[str]:
    """Names of the nodes whose results are known once shapes are.

    Args:
        nodes: In an order in which they can run.
    """
    known: set[str] = set()
    for node in nodes:
        is_made_of_sizes = bool(node.reads) and all(producer(tensor) in known for tensor in node.reads)
        if is_made_of_sizes or node.type == "Const" or node.type in READS_SHAPE:
            known.add(node.name)
    return frozenset(known)


def repeated_for_sizes(
    read: Collection[str],
    nodes: Sequence[Node],
    sizes: Collection[str],
    *,
    present: Collection[str],
    repeatable: Collection[str],
) -> set[str]:
    """Names of the nodes that a program repeats to know the sizes that it reads, those from which that is possible.

    Args:
        read: The tensors that it reads and does not make. It is still given those that are no sizes.
        nodes: All nodes, in an order in which they can run.
        sizes: Names of those that are sizes, as `sizes_among` gives them.
        present: Names of the nodes whose results the program has, or may be given.
        repeatable: Names of the nodes that it may repeat, but for loops, branches, and what has no size
            before it has run.
    """
    wanted = {tensor for tensor in read if producer(tensor) in sizes}
    given = set(read) - wanted
    within_reach: dict[str, Sequence[str]] = {}
    for node in nodes:
        if node.name in present:
            within_reach[node.name] = ()
        elif (
            node.name in repeatable
            and node.type not in _NOT_REPEATED
            and all(t in given or producer(t) in within_reach for t in node.reads)
        ):
            within_reach[node.name] = [producer(tensor) for tensor in node.reads if tensor not in given]
    repeated: set[str] = set()
    stack = [producer(tensor) for tensor in wanted]
    while stack:
        name = stack.pop()
        if name in within_reach and name not in repeated and name not in present:
            repeated.add(name)
            stack.extend(within_reach[name])
    return repeated
