"""Items: what must stay together does, nothing is lost, and size limits hold."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from graphs import Builder, chain, pinned, random_graphs, topology
from hypothesis import given
from hypothesis import strategies as st

from cost_models.specs import OpCost
from partitioner.ir.fusion import FusedGroup, Fusion
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.coarsening import Coarsening


def together(made: Builder, *names: str, **options) -> bool:
    return len({coarsen(made.costed(), **options).item_of[name] for name in names}) == 1


def test_a_chain_of_layers_is_an_item_per_layer() -> None:
    coarsening = coarsen(chain([1.0] * 3, [4] * 3).costed())
    assert coarsening == Coarsening(
        items=(("op0",), ("op1",), ("op2",)),
        item_of={"op0": 0, "op1": 1, "op2": 2},
        names=("layer0", "layer1", "layer2"),
        is_lossless=True,
        allowed=(frozenset({0, 1}),) * 3,
    )


def test_a_leaf_layer_with_many_parameters_is_placed_op_by_op() -> None:
    made = Builder()
    for index in range(5):
        made.variable(f"w{index}", 4, layer="cell")
    made.add("a", 1.0, layer="cell")
    made.add("b", 1.0, "a", layer="cell")
    assert not together(made, "a", "b")
    made.variables.pop()
    assert together(made, "a", "b")


def test_free_ops_join_the_only_item_that_reads_them() -> None:
    made = Builder()
    made.add("constant", 0.0)
    made.add("axis", 0.0, "constant")
    made.add("a", 1.0)
    made.add("b", 1.0, "a", "axis")
    assert together(made, "constant", "axis", "b")
    assert not together(made, "a", "b")


def test_a_free_op_that_nobody_reads_joins_what_feeds_it() -> None:
    made = Builder()
    made.add("a", 1.0)
    made.add("b", 1.0, "a")
    made.add("result", 0.0, "b")
    assert together(made, "b", "result")
    assert not together(made, "a", "b")


def test_a_free_op_read_by_two_items_stays_apart() -> None:
    made = Builder()
    made.add("shared", 0.0)
    made.add("a", 1.0, "shared")
    made.add("b", 1.0, "shared")
    assert len(coarsen(made.costed()).items) == 3


def test_a_free_op_does_not_drag_its_busy_layer_into_the_next() -> None:
    made = Builder()
    made.add("work", 1.0, layer="one")
    made.add("reshape", 0.0, "work", layer="one")
    made.add("next", 1.0, "reshape", layer="two")
    assert together(made, "work", "reshape")
    assert not together(made, "work", "next")


def test_a_free_op_joins_nobody_who_may_be_elsewhere() -> None:
    made = Builder()
    made.add("flatten", 0.0, layer="flatten")
    made.add("dense", 1.0, "flatten", layer="dense")
    assert together(made, "flatten", "dense")
    assert not together(made, "flatten", "dense", constraints=pinned(flatten=0))
    assert together(made, "flatten", "dense", constraints=pinned(dense=0))
    assert together(made, "flatten", "dense", constraints=pinned(flatten=0, dense=0))
    assert not together(made, "flatten", "dense", constraints=pinned(flatten=0, dense=1))


def test_the_lightest_joins_the_neighbour_it_exchanges_most_with() -> None:
    # op1 is lightest; 8 bytes come from op0, 400 go to op2.
    coarsening = coarsen(chain([4.0, 1.0, 4.0, 4.0], [8, 400, 8, 8]).costed(), max_items=3)
    assert coarsening.items == (("op0",), ("op1", "op2"), ("op3",))
    assert not coarsening.is_lossless


def blocks(count: int) -> Builder:
    """Blocks of a light norm and a heavy branch that is added to what went in, and a number that every layer reads."""
    made = Builder()
    made.add("rate", 0.0, size_bytes=4)
    before = made.add("x", 0.0, type="Placeholder", size_bytes=4)
    for index in range(count):
        norm = made.add(f"norm{index}", 0.01, before, "rate", size_bytes=1024, layer=f"norm{index}")
        heavy = made.add(f"heavy{index}", 1.0, norm, "rate", size_bytes=1024, layer=f"heavy{index}")
        before = made.add(f"add{index}", 0.01, before, heavy, "rate", size_bytes=1024, layer=f"add{index}")
    return made


@pytest.mark.parametrize(("count", "max_items"), [(40, 80), (40, 20), (40, 16), (100, 16)])
def test_blocks_with_sums_around_them_become_items_of_consecutive_blocks(count: int, max_items: int) -> None:
    """All sums became one item, which took all that was light: a fifth of a language model of 80 blocks."""
    costed = blocks(count).costed()
    coarsening = coarsen(costed, max_items)
    assert len(coarsening.items) <= max_items
    place = {op.name: index for index, op in enumerate(costed.graph.ops)}
    seconds = {op.name: row[0] for op, row in zip(costed.graph.ops, costed.seconds, strict=True)}
    for ops in coarsening.items:
        places = sorted(place[name] for name in ops if name not in ("rate", "x"))
        assert places == [*range(places[0], places[-1] + 1)]
    heaviest = max(sum(seconds[name] for name in ops) for ops in coarsening.items)
    assert heaviest <= 3 * max(1.02, 1.02 * count / max_items)


def test_items_pinned_to_different_devices_do_not_merge_for_size() -> None:
    costed = chain([1.0, 1.0, 1.0], [400, 8, 8]).costed()
    coarsening = coarsen(costed, max_items=2, constraints=pinned(op0=0, op1=1))
    assert coarsening.item_of["op0"] != coarsening.item_of["op1"]
    assert len(coarsening.items) == 2


def test_what_is_colocated_is_one_item() -> None:
    whole = ResolvedConstraint(text="colocate", ops=("op0", "op2"), together=True)
    coarsening = coarsen(chain([1.0] * 3, [8] * 3).costed(), constraints=[whole, *pinned(op2=1)])
    assert coarsening.items == (("op0", "op2"), ("op1",))
    assert coarsening.allowed == ({1}, {0, 1})


@given(random_graphs(max_ops=10))
def test_items_partition_the_ops_and_keep_together_what_must_be(made: Builder) -> None:
    costed = made.costed()
    coarsening = coarsen(costed)
    assert sorted(name for ops in coarsening.items for name in ops) == sorted(costed.graph.op)
    assert all(coarsening.item_of[name] == index for index, ops in enumerate(coarsening.items) for name in ops)
    for key in ("colocation_group", "layer"):
        for value in {getattr(op, key) for op in made.ops} - {""}:
            assert len({coarsening.item_of[op.name] for op in made.ops if getattr(op, key) == value}) == 1
    for variable in made.variables:
        assert len({coarsening.item_of[op.name] for op in made.ops if variable.name in op.variables}) <= 1


@given(random_graphs(max_ops=10), st.integers(1, 4))
def test_there_are_at_most_as_many_items_as_asked_for_or_as_cannot_be_joined(made: Builder, max_items: int) -> None:
    costed = made.costed()
    fine, coarse = coarsen(costed), coarsen(costed, max_items)
    joined = nx.Graph()
    joined.add_nodes_from(range(len(fine.items)))
    for op in made.ops:
        for name in op.inputs:
            joined.add_edge(fine.item_of[name.removesuffix(":0")], fine.item_of[op.name])
    unconnected = nx.number_connected_components(joined)
    assert len(coarse.items) <= max(max_items, unconnected)
    assert coarse.is_lossless == (len(coarse.items) == len(fine.items))
    for ops in fine.items:
        assert len({coarse.item_of[name] for name in ops}) == 1


def test_slots_do_not_make_a_layer_a_model_in_disguise() -> None:
    made = Builder()
    for index in range(9):
        made.variable(f"m{index}", 4, VariableKind.SLOT, layer="dense")
    made.add("a", 1.0, layer="dense")
    made.add("b", 1.0, "a", layer="dense")
    assert together(made, "a", "b")
    assert len(coarsen(made.costed(topology(1))).items) == 1


def test_bug_kernels_across_layers_made_one_item_of_all_blocks() -> None:
    """XLA makes a kernel of a residual sum and the normalisation behind it, in every block: 264 ms on one A100 stayed
    264 ms on four, as no block could be put on another device than the block before it."""
    made = chain([0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [4] * 6)
    made.costs = [OpCost(flops=cost.flops or 1) for cost in made.costs]
    kernels = [(f"op{i}", f"op{i + 1}") for i in range(5)]
    groups = [FusedGroup(ops=ops, timed=ops[1], flops=2, moved_bytes=8, launches=1) for ops in kernels]
    costed = replace(made.costed(), fusion=Fusion(groups=tuple(groups)))
    assert len(coarsen(costed).items) == 6
