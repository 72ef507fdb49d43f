"""Which gradients wait for others, and that no two wait for each other."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
from graphs import Builder, on, random_graphs, training_chain
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.op_graph import Phase
from partitioner.stages.delayed_gradients import delayed_gradients


def two_devices(num_layers: int) -> tuple[Builder, dict[str, int]]:
    """A training chain, and its first half of layers on a device, the rest on another."""
    made = training_chain(num_layers, parameter_bytes=256, slot_bytes=0, saved_bytes=256)
    half = {f"{kind}{layer}": 1 for kind in "fbdu" for layer in range(num_layers // 2, num_layers)}
    return made, on(made.costed(), loss=1, **half)


def test_gradients_of_weights_wait_for_the_last_gradient_that_another_device_needs() -> None:
    made, placement = two_devices(4)
    assert delayed_gradients(made.graph(), placement) == {"d3": ("b2",), "d2": ("b2",)}


def test_the_first_device_has_nothing_to_wait_for_and_neither_has_a_step_on_one_device() -> None:
    made, placement = two_devices(2)
    assert delayed_gradients(made.graph(), placement) == {"d1": ("b1",)}
    assert delayed_gradients(made.graph(), dict.fromkeys(placement, 0)) == {}


def test_ops_that_do_not_run_are_not_waited_for() -> None:
    made, placement = two_devices(4)
    ops = {op.name for op in made.graph().ops} - {"b0", "b1", "d0", "d1", "u0", "u1"}
    assert delayed_gradients(made.graph(), placement, ops) == {}


def test_what_only_an_update_elsewhere_needs_is_delayed_too() -> None:
    """As for the norm of all gradients, which every device waits for before its updates."""
    made, placement = two_devices(4)
    made.add("norm", 1.0, "d0", "d1", "d2", "d3", phase=Phase.UPDATE)
    assert delayed_gradients(made.graph(), {**placement, "norm": 0}) == {"d3": ("b2",), "d2": ("b2",)}


def test_a_gradient_whose_update_comes_before_another_gradient_is_not_delayed() -> None:
    """As in a step of two optimizers, the second of which sees what the first has updated on another device."""
    made = Builder()
    made.add("f", 1.0)
    made.add("d", 1.0, "f", phase=Phase.BACKWARD)
    made.add("u", 1.0, "d", phase=Phase.UPDATE)
    made.add("f again", 1.0, "u")
    made.add("b again", 1.0, "f again", phase=Phase.BACKWARD)
    made.add("d again", 1.0, "b again", phase=Phase.BACKWARD)
    made.add("other", 1.0, "b again", phase=Phase.BACKWARD)
    placement = on(made.costed(), **{"u": 1, "f again": 1, "d again": 1})
    assert delayed_gradients(made.graph(), placement) == {"other": ("b again",)}


def test_a_result_that_is_only_reported_is_delayed() -> None:
    """As the mean of the losses of rows, of which gradients do not depend: another device waits for these."""
    made, placement = two_devices(4)
    made.add("mean", 1.0, "loss")
    made.add("square", 1.0, "mean")
    made.add("constant", 1.0)
    placement |= {"mean": 1, "square": 1, "constant": 1}
    assert delayed_gradients(made.graph(), placement) == {"d3": ("b2",), "d2": ("b2",), "mean": ("b2",)}


def test_of_gradients_that_do_not_follow_each_other_all_are_waited_for() -> None:
    """As of those of queries, keys and values, where a cut goes through attention: one came long before the others."""
    made, placement = two_devices(4)
    made.add("f key", 1.0, "f1")
    made.add("b key", 1.0, "loss", phase=Phase.BACKWARD)
    made.add("b query", 1.0, "loss", "f key", phase=Phase.BACKWARD)
    made.add("sum", 1.0, "b1", "b key", "b query", phase=Phase.BACKWARD)
    placement |= {"f key": 0, "b key": 1, "b query": 1, "sum": 0}
    last = ("b2", "b key", "b query")
    assert delayed_gradients(made.graph(), placement) == {"d3": last, "d2": last}


def test_of_gradients_that_follow_each_other_the_first_waits() -> None:
    made, placement = two_devices(4)
    made.add("scaled", 1.0, "d3", phase=Phase.BACKWARD)
    assert delayed_gradients(made.graph(), {**placement, "scaled": 1}) == {"d3": ("b2",), "d2": ("b2",)}


@given(made=random_graphs(max_ops=12), data=st.data())
def test_no_two_ops_wait_for_each_other(made: Builder, data: st.DataObject) -> None:
    made.ops = [replace(op, phase=data.draw(st.sampled_from(Phase))) for op in made.ops]  # steps may update in between
    graph = made.graph()
    placement = {op.name: data.draw(st.integers(0, 2), op.name) for op in graph.ops}
    delayed = delayed_gradients(graph, placement)
    waits = [
        (source, name) for made in (graph.sources, delayed) for name, sources in made.items() for source in sources
    ]
    assert nx.is_directed_acyclic_graph(nx.DiGraph(waits))
    for name, sources in delayed.items():
        assert {placement[source] for source in sources} == {placement[name]}
        assert {graph.op[source].phase for source in sources} == {Phase.BACKWARD}
        assert graph.op[name].phase is not Phase.UPDATE
