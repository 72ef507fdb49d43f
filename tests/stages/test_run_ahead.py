"""Which ops a CPU may not start before others have ended, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import networkx as nx
from graphs import Builder, random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.specs import TensorSpec
from partitioner.ir.op_graph import Phase
from partitioner.stages.run_ahead import ORDER, Order, keeps_order, run_ahead_limits


def limits(made: Builder, order: Order) -> Mapping[str, set[str]]:
    graph = made.graph()
    sources_of = run_ahead_limits(graph, [op.name for op in graph.ops], order=order)
    return {name: set(sources) for name, sources in sources_of.items()}


def test_an_op_waits_for_all_that_come_some_places_before_it() -> None:
    made = Builder()
    for index in range(12):
        made.add(f"o{index}", 1.0)
    sources_of = limits(made, Order(ahead=4))
    assert "o3" not in sources_of
    assert sources_of["o4"] == {"o0"}
    assert sources_of["o11"] == {"o4", "o5", "o6", "o7"}  # which wait for o0 to o3


def test_a_chain_needs_no_waits() -> None:
    made = Builder()
    made.add("o0", 1.0)
    for index in range(1, 3 * ORDER.ahead):
        made.add(f"o{index}", 1.0, f"o{index - 1}")
    assert not limits(made, ORDER)


def test_what_an_op_reads_needs_no_second_edge_and_what_does_no_work_has_no_place() -> None:
    made = Builder()
    for index in range(4):
        made.add(f"o{index}", 1.0)
        made.add(f"view{index}", 0.0, f"o{index}", type="Reshape")
    made.add("reader", 1.0, "view0")
    made.add("other", 1.0)
    assert limits(made, Order(ahead=4)) == {"other": {"o0", "o1"}}


def test_gradients_wait_for_the_ends_of_updates_some_gradients_before() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"d{index}", 1.0, phase=Phase.BACKWARD)
    made.add("decay0", 1.0, phase=Phase.UPDATE)
    made.add("update0", 1.0, "d0", "decay0", phase=Phase.UPDATE)
    # The order is d0 decay0 update0 d1 d2 d3 d4 d5.
    assert limits(made, Order(ahead=2, ahead_of_updates=2)) == {
        "d2": {"update0"}, "d3": {"update0", "d1"}, "d4": {"d1", "d2"}, "d5": {"d2", "d3"},
    }  # fmt: skip


def test_updates_after_all_gradients_run_a_few_at_a_time() -> None:
    made = Builder()
    made.add("norm", 1.0, phase=Phase.BACKWARD)
    for index in range(4):
        made.add(f"update{index}", 1.0, "norm", phase=Phase.UPDATE)
    assert limits(made, Order(ahead=16, ahead_of_updates=2)) == {
        "update2": {"update0"}, "update3": {"update0", "update1"},
    }  # fmt: skip


def test_ops_on_vectors_are_left_alone() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"o{index}", 1.0)
    made.tensors = [replace(one, spec=TensorSpec(shape=(256,), dtype="float32")) for one in made.tensors]
    assert not limits(made, Order(ahead=1))
    assert len(limits(made, Order(ahead=1, least_rank=0))) == 5


def test_only_cpus_are_held_to_an_order() -> None:
    assert keeps_order("/job:localhost/replica:0/task:0/device:CPU:1")
    assert not keeps_order("/job:localhost/replica:0/task:0/device:GPU:0")


@settings(deadline=None, derandomize=True, max_examples=50, database=None)
@given(random_graphs(max_ops=14))
def test_nothing_waits_in_a_circle_and_everything_far_before_has_ended(made: Builder) -> None:
    graph, ahead, ahead_of_updates = made.graph(), 3, 2
    edges = nx.DiGraph()
    edges.add_nodes_from(op.name for op in graph.ops)
    for op in graph.ops:
        needs = [*(graph.tensor[read].producer for read in op.inputs), *op.control_inputs]
        edges.add_edges_from((source, op.name) for source in needs)
    for name, sources in limits(made, Order(ahead=ahead, ahead_of_updates=ahead_of_updates)).items():
        edges.add_edges_from((source, name) for source in sources)
    assert nx.is_directed_acyclic_graph(edges)
    held = [op.name for op in graph.ops if op.phase is not Phase.UPDATE]
    for index, name in enumerate(held):
        assert nx.ancestors(edges, name).issuperset(held[: max(0, index - ahead + 1)])
    done: list[str] = []
    while len(done) < len(graph.ops):
        ready = [name for name in edges if name not in done and set(edges.predecessors(name)).issubset(done)]
        updates = [name for name in ready if graph.op[name].phase is Phase.UPDATE]
        # No more than a window of ops can be ready at a time.
        assert len(ready) - len(updates) <= ahead
        assert len(updates) <= ahead_of_updates
        done.append(ready[-1])


@settings(deadline=None, derandomize=True, max_examples=50, database=None)
@given(random_graphs(max_ops=14), st.lists(st.sampled_from(["CPU:0", "CPU:1", "GPU:0"]), min_size=14, max_size=14))
def test_cpus_hold_their_own_ops_to_one_order_and_do_not_wait_for_each_other(made: Builder, places: list[str]) -> None:
    graph, ahead = made.graph(), 2
    device = {op.name: f"/job:localhost/device:{place}" for op, place in zip(graph.ops, places, strict=False)}
    sources_of = run_ahead_limits(
        graph, list(device), order=Order(ahead=ahead, ahead_of_updates=ahead), placement=device
    )
    edges = graph.to_networkx()
    for name, sources in sources_of.items():
        edges.add_edges_from((source, name) for source in sources)
        assert {device[source] for source in sources} == {device[name]}
        assert keeps_order(device[name])
    assert nx.is_directed_acyclic_graph(edges)
    for place in ("CPU:0", "CPU:1"):
        held = [op.name for op in graph.ops if op.phase is not Phase.UPDATE and device[op.name].endswith(place)]
        for index, name in enumerate(held):
            assert nx.ancestors(edges, name).issuperset(held[: max(0, index - ahead + 1)])


def test_what_only_a_host_can_run_is_left_alone() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"o{index}", 1.0)
    made.ops = [replace(op, host_only=True) for op in made.ops]
    assert not limits(made, Order(ahead=1))
