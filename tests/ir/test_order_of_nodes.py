"""The order of nodes, by their names and inputs alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.graph_def import in_run_order


@dataclass(frozen=True)
class Node:
    name: str
    needs: tuple[str, ...] = ()


def names(*nodes: Node) -> str:
    return "".join(node.name for node in in_run_order(nodes, lambda node: node.needs))


def test_nodes_in_order_stay() -> None:
    assert names(Node("a"), Node("c"), Node("b", ("a",)), Node("d", ("b", "c"))) == "acbd"


def test_a_node_moves_behind_what_it_needs() -> None:
    assert names(Node("a", ("c",)), Node("b"), Node("c")) == "bca"
    assert names(Node("a", ("c",)), Node("b", ("a",)), Node("c"), Node("d")) == "cabd"


@given(st.permutations(range(6)), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_every_node_comes_behind_what_it_needs(order: list[int], edges: set[tuple[int, int]]) -> None:
    needs = {number: tuple(f"{a}" for a, b in sorted(edges) if b == number and a < b) for number in range(6)}
    ordered = in_run_order([Node(f"{n}", needs[n]) for n in order], lambda node: node.needs)
    place = {node.name: index for index, node in enumerate(ordered)}
    assert sorted(place) == sorted(map(str, range(6)))
    assert all(place[name] < place[node.name] for node in ordered for name in node.needs)
