"""Pieces: by hand, and for random graphs against a definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.stages.pieces import pieces


def of(placed: str, late: str = "", **needs: str) -> list[str]:
    """Pieces of the ops `a`, `b`, ... on the devices of `placed`; each piece as the letters of its ops."""
    ops = "abcdefghij"[: len(placed)]
    groups = pieces(ops, {op: needs.get(op, "") for op in ops}, dict(zip(ops, placed, strict=True)), late)
    return ["".join(piece) for piece in groups]


def test_a_chain_has_a_piece_per_run_of_one_device() -> None:
    assert of("11221", b="a", c="b", d="c", e="d") == ["ab", "cd", "e"]


def test_what_nothing_separates_is_one_piece() -> None:
    assert of("121", c="a") == ["ac", "b"]


def test_a_detour_over_another_device_separates() -> None:
    assert of("121", b="a", c="ab") == ["a", "b", "c"]


def test_a_branch_joins_where_it_comes_back() -> None:
    # `d` could run with `a`, and must not be cut off from it by the detour over `b` to `c`.
    assert of("1211", b="a", c="b", d="a") == ["ad", "b", "c"]


def test_a_late_start_joins_the_late_piece_or_the_early_one_but_not_both() -> None:
    assert of("1212", b="a", c="b", d="") in (["a", "bd", "c"], ["a", "b", "c", "d"])
    assert len(of("1212", b="a", c="b", d="")) == 3


def test_two_devices_that_wait_for_each_other_crosswise_need_three_pieces() -> None:
    assert len(of("1221", b="a", d="c")) == 3


def test_what_is_late_lies_with_its_first_reader() -> None:
    assert of("11211", c="b", d="c", e="ad") == ["ab", "c", "de"]
    assert of("11211", late="a", c="b", d="c", e="ad") == ["b", "c", "ade"]
    # Of a chain of late ops each lies with the next; its first reader may be on another device.
    assert of("11121", late="ab", b="a", d="c", e="bd") == ["c", "d", "abe"]
    assert of("1212", late="a", c="b", d="ac") == ["b", "ac", "d"]


def test_no_ops_have_no_pieces() -> None:
    assert of("") == []


@st.composite
def placed_graphs(draw: st.DrawFn, most: int) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
    ops = [f"op{index}" for index in range(draw(st.integers(1, most)))]
    needs = {
        op: draw(st.lists(st.sampled_from(ops[:index]), max_size=3, unique=True)) if index else []
        for index, op in enumerate(ops)
    }
    return ops, needs, {op: draw(st.sampled_from("123")) for op in ops}


def quotient(groups: Sequence[Sequence[str]], needs: Mapping[str, Sequence[str]]) -> nx.DiGraph:
    piece = {op: index for index, ops in enumerate(groups) for op in ops}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(groups)))
    graph.add_edges_from((piece[s], piece[op]) for op in needs for s in needs[op] if piece[s] != piece[op])
    return graph


@settings(deadline=None)
@given(placed_graphs(16), st.integers(0, 5))
def test_pieces_run_one_after_the_other_and_no_two_could_be_one(
    graph: tuple[list[str], dict[str, list[str]], dict[str, str]], num_late: int
) -> None:
    ops, needs, device = graph
    late = [op for op in ops[:num_late] if not set(needs[op]) - set(ops[:num_late])]
    groups = pieces(ops, needs, device, late)
    assert sorted(op for piece in groups for op in piece) == sorted(ops)
    for piece in groups:
        assert piece == sorted(piece, key=ops.index)
        assert len({device[op] for op in piece}) == 1
    assert all(before < behind for before, behind in quotient(groups, needs).edges)
    for first in range(len(groups)):
        for second in range(first + 1, len(groups)):
            if device[groups[first][0]] == device[groups[second][0]]:
                rest = [piece for index, piece in enumerate(groups) if index not in (first, second)]
                joined = [[*groups[first], *groups[second]], *rest]
                assert not nx.is_directed_acyclic_graph(quotient(joined, needs)), joined
