"""Fused groups: what enters and leaves them, and that they are convex, apart, and never move more than their ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import pytest
from graphs import Builder, topology
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalogue import device_named
from cost_models.flops import op_cost
from cost_models.gpu_seconds import fused_seconds, second_pass_bytes
from cost_models.specs import TensorSpec
from cost_models.topology import Topology
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import OpGraph, Phase, Tensor
from partitioner.planner.bounds.step_time import lower_bound_seconds
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.costs import GraphCosts, cost_ops
from partitioner.planner.model.fusion import fuse
from partitioner.planner.simulate.unpipelined import simulate

SIZE = 1 << 20
"""Bytes of a tensor."""


def fused(graph: OpGraph) -> Fusion:
    return fuse(graph, graph.of_specs(op_cost))


def machines(count: int = 1, name: str = "v100-16gb") -> Topology:
    made = topology(count)
    return replace(made, devices=tuple(replace(placed, device=device_named(name)) for placed in made.devices))


def chain(*types: str, phases: Sequence[Phase] = ()) -> Builder:
    """Ops in a row, `x` first; a matrix of columns of one element multiplies nothing."""
    made, before = Builder(), Builder().add("x", type="Placeholder", size_bytes=SIZE)
    made.add("x", type="Placeholder", size_bytes=SIZE)
    for index, kind in enumerate(types):
        phase = phases[index] if phases else Phase.FORWARD
        before = made.add(f"o{index}", 0.0, before, type=kind, size_bytes=SIZE, phase=phase)
    return made


def test_a_chain_of_elementwise_ops_reads_what_enters_and_writes_what_leaves() -> None:
    (group,) = fused(chain("Relu", "Exp", "Neg").graph(outputs=["o2"])).groups
    assert set(group.ops) >= {"o0", "o1", "o2"}
    assert (group.timed, group.moved_bytes, group.launches) == ("o2", 2 * SIZE, 1)
    assert group.flops == (1 + 8 + 1) * SIZE // 4


def test_its_inner_tensors_take_no_memory_and_others_do() -> None:
    graph = chain("Exp", "Exp", "Exp").graph(outputs=["o2"])
    assert fused(graph).inner == {"o0:0", "o1:0"}
    costed = cost_ops(graph, machines(), compiled=frozenset(op.name for op in graph.ops))
    assert {Buffers(costed).sizes["GPU"][f"o{index}:0"] for index in (0, 1)} == {0}
    assert Buffers(costed).sizes["GPU"]["o2:0"] == SIZE


def test_what_a_library_computes_ends_a_kernel() -> None:
    found = fused(chain("Relu", "MatrixInverse", "Relu").graph(outputs=["o2"]))
    assert [group.timed for group in found.groups] == ["o0", "o2"]
    assert [group.moved_bytes for group in found.groups] == [2 * SIZE, 2 * SIZE]


def test_a_reduction_fuses_with_what_it_reads_and_ends_its_kernel() -> None:
    made = chain("Exp")
    made.add("sum", 0.0, "o0", type="Sum", size_bytes=4)
    made.add("difference", 0.0, "o0", "sum", type="Sub", size_bytes=SIZE)
    first, second = fused(made.graph(outputs=["difference"])).groups
    assert (first.timed, first.moved_bytes) == ("sum", SIZE + SIZE + 4)  # the exponential is stored, for it is dear
    assert (second.timed, second.moved_bytes) == ("difference", SIZE + 4 + SIZE)


def test_what_is_cheap_to_compute_again_is_not_stored() -> None:
    made = chain("Neg")
    made.add("sum", 0.0, "o0", type="Sum", size_bytes=4)
    made.add("difference", 0.0, "o0", "sum", type="Sub", size_bytes=SIZE)
    found = fused(made.graph(outputs=["difference"]))
    assert found.views == {"o0:0": "x:0"}
    assert [group.moved_bytes for group in found.groups] == [SIZE + 4, SIZE + 4 + SIZE]


def test_what_the_backward_pass_reads_is_stored_unless_it_is_a_conversion() -> None:
    both = [Phase.FORWARD, Phase.BACKWARD]
    assert not fused(chain("Neg", "Exp", phases=both).graph(outputs=["o1"])).views
    assert fused(chain("Cast", "Exp", phases=both).graph(outputs=["o1"])).views == {"o0:0": "x:0"}


def test_phases_stay_apart() -> None:
    graph = chain("Exp", "Exp", "Exp", phases=list(Phase)).graph(outputs=["o2"])
    assert [group.timed for group in fused(graph).groups] == ["o0", "o1", "o2"]


def test_a_scalar_for_all_layers_does_not_join_them() -> None:
    made = Builder()
    made.add("x", type="Placeholder", size_bytes=SIZE)
    made.add("y", type="Placeholder", size_bytes=SIZE)
    made.add("rate", type="Placeholder", size_bytes=4)
    made.add("half", 0.0, "rate", type="Exp", size_bytes=4)
    made.add("a", 0.0, "x", "half", type="Mul", size_bytes=SIZE, layer="a")
    made.add("b", 0.0, "y", "half", type="Mul", size_bytes=SIZE, layer="b")
    sets = [set(group.ops) & {"a", "b"} for group in fused(made.graph(outputs=["a", "b"])).groups]
    assert {"a", "b"} not in sets


def test_only_compiled_ops_are_fused() -> None:
    graph = chain("Exp", "Exp").graph(outputs=["o1"])
    found = fuse(graph, graph.of_specs(op_cost), frozenset({"o0"}))
    assert [group.timed for group in found.groups] == ["o0"]


def test_what_is_not_compiled_is_stored_however_cheap() -> None:
    graph = chain("Neg", "Exp", "Neg").graph(outputs=["o2"])
    found = fuse(graph, graph.of_specs(op_cost), frozenset({"o1", "o2"}))
    assert not found.views
    assert "o0:0" not in found.inner
    (group,) = found.groups
    assert (group.timed, group.moved_bytes) == ("o2", 2 * SIZE)


def sized(kind: str) -> Builder:
    """An exponential of `x`, times a scalar that is made of its shape, or of its values."""
    made = chain("Exp")
    made.add("read", 0.0, "o0", type=kind, size_bytes=4)
    made.add("scalar", 0.0, "read", type="Sqrt", size_bytes=4)
    made.add("product", 0.0, "o0", "scalar", type="Mul", size_bytes=SIZE)
    return made


def test_no_kernel_computes_what_follows_from_shapes() -> None:
    graph = sized("Size").graph(outputs=["product"])
    found = fused(graph)
    assert [(group.timed, group.launches) for group in found.groups] == [("product", 1)]
    assert found.known == {"scalar"}
    costed = cost_ops(graph, machines(), compiled=frozenset(op.name for op in graph.ops))
    assert {op.name for op, row in zip(graph.ops, costed.seconds, strict=True) if row[0]} == {"product"}


def test_what_follows_from_values_is_computed() -> None:
    found = fused(sized("Max").graph(outputs=["product"]))
    assert not found.known
    assert [group.timed for group in found.groups] == ["read", "product"]
    assert "scalar" in found.groups[1].ops


@pytest.mark.parametrize(("kind", "moved_bytes", "launches"), [("Exp", SIZE, 0), ("MatrixInverse", 3 * SIZE, 1)])
def test_a_kernel_adds_what_it_makes_to_a_total_and_a_library_leaves_that_to_another(
    kind: str, moved_bytes: int, launches: int
) -> None:
    graph = chain(kind).graph(outputs=["o0"])
    costs = GraphCosts(graph, frozenset(op.name for op in graph.ops))
    alone, added = (costs.on(machines(), sums=sums).seconds[-1][0] for sums in ((), ("o0:0",)))
    assert added - alone == pytest.approx(fused_seconds(0, moved_bytes, launches, device_named("v100-16gb")))


def test_ops_of_a_kernel_are_placed_together_and_one_of_them_has_its_time() -> None:
    graph = chain("Exp", "Exp", "MatrixInverse").graph(outputs=["o2"])
    costed = cost_ops(graph, machines(2), compiled=frozenset(op.name for op in graph.ops))
    seconds = {op.name: row[0] for op, row in zip(graph.ops, costed.seconds, strict=True)}
    device = device_named("v100-16gb")
    assert seconds["o0"] == 0.0
    assert seconds["o1"] == fused_seconds(2 * 8 * SIZE // 4, 2 * SIZE, 1, device)
    items = coarsen(costed).item_of
    assert items["o0"] == items["o1"] != items["o2"]
    assert cost_ops(graph, machines(2)).fusion is None


TYPES = ("Relu", "Exp", "Neg", "Cast", "AddN", "Identity", "Sum", "Softmax", "MaxPool", "FusedBatchNormV3")


@st.composite
def steps(draw: st.DrawFn) -> OpGraph:
    """Any small step of ops that fuse, reduce or stay alone."""
    made, sizes = Builder(), {}
    count = draw(st.integers(1, 12))
    phases = sorted(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    for index in range(count):
        earlier = [f"o{i}" for i in range(index)]
        reads = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        kind = draw(st.sampled_from(TYPES)) if reads else "Placeholder"
        size = draw(st.sampled_from([64, 256, 1024])) if kind in ("Placeholder", "Sum") else sizes[reads[0]]
        size = min(size, sizes[reads[0]]) if reads else size
        reads = reads if kind == "AddN" else reads[:1]
        sizes[f"o{index}"] = size
        after = draw(st.lists(st.sampled_from(earlier), max_size=1)) if earlier else []
        made.add(
            f"o{index}",
            0.0,
            *reads,
            type=kind,
            size_bytes=size,
            phase=list(Phase)[phases[index]],
            layer=draw(st.sampled_from(["", "A", "B"])),
            after=after,
        )
    last = [f"o{count - 1}"]
    graph = made.graph(outputs=last)
    shapes = {f"o{index}:0": sizes[f"o{index}"] for index in range(count)}
    return replace(
        graph,
        tensors=tuple(
            Tensor(
                name=tensor.name,
                producer=tensor.producer,
                spec=TensorSpec(shape=(shapes[tensor.name] // 4, 1), dtype="float32"),
            )
            for tensor in graph.tensors
        ),
    )


@settings(max_examples=150)
@given(steps())
def test_groups_are_apart_and_convex(graph: OpGraph) -> None:
    groups = fused(graph).groups
    names = [name for group in groups for name in group.ops]
    assert len(names) == len(set(names))
    group_of = {name: f"group {index}" for index, group in enumerate(groups) for name in group.ops}
    quotient = nx.DiGraph()
    for before, after in graph.to_networkx().edges:
        if group_of.get(before, before) != group_of.get(after, after):
            quotient.add_edge(group_of.get(before, before), group_of.get(after, after))
    assert nx.is_directed_acyclic_graph(quotient)
    for group in groups:
        assert len({graph.op[name].phase for name in group.ops}) == 1
        assert group.timed in group.ops


@settings(max_examples=150)
@given(steps())
def test_a_compiled_step_never_moves_more_bytes(graph: OpGraph) -> None:
    costs = graph.of_specs(op_cost)
    alone = {
        op.name: cost.moved_bytes + second_pass_bytes(spec)
        for op, spec, cost in zip(graph.ops, graph.specs, costs, strict=True)
    }
    for group in fused(graph).groups:
        assert group.moved_bytes <= sum(alone[name] for name in group.ops)


@settings(max_examples=60)
@given(steps(), st.integers(0, 3))
def test_a_simulated_compiled_step_is_never_below_its_bound(graph: OpGraph, places: int) -> None:
    costed = cost_ops(graph, machines(2), compiled=frozenset(op.name for op in graph.ops))
    schedule = simulate(costed, {op.name: (places >> index % 2) & 1 for index, op in enumerate(graph.ops)})
    assert schedule.step_seconds >= lower_bound_seconds(costed) * (1 - 1e-9)
