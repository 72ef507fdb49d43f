"""Which ops a CPU may not start before others have ended, by hand."""

from __future__ import annotations

from graphs import Builder, random_graphs
from hypothesis import given, settings

from partitioner.ir.op_graph import Phase
from partitioner.stages.run_ahead import AHEAD, keeps_order, run_ahead_limits


def names(made: Builder) -> list[str]:
    return [op.name for op in made.graph().ops]


def test_an_op_waits_for_all_that_come_a_few_places_before_it() -> None:
    made = Builder()
    for index in range(12):
        made.add(f"o{index}", 1.0)
    limits = run_ahead_limits(made.graph(), names(made))
    assert AHEAD == 4
    assert "o3" not in limits
    assert limits["o4"] == ["o0"]
    assert limits["o11"] == ["o4", "o5", "o6", "o7"]  # which wait for o0 to o3


def test_what_an_op_reads_needs_no_second_edge_and_what_does_no_work_has_no_place() -> None:
    made = Builder()
    for index in range(4):
        made.add(f"o{index}", 1.0)
        made.add(f"view{index}", 0.0, f"o{index}", type="Reshape")
    made.add("reader", 1.0, "o0")
    made.add("other", 1.0)
    assert run_ahead_limits(made.graph(), names(made)) == {"other": ["o0", "o1"]}


def test_an_update_comes_right_after_its_gradient() -> None:
    made = Builder()
    for index in range(6):
        made.add(f"d{index}", 1.0, phase=Phase.BACKWARD)
    made.add("decay0", 1.0, phase=Phase.UPDATE)
    made.add("update0", 1.0, "d0", "decay0", phase=Phase.UPDATE)
    # The order is d0 decay0 update0 d1 d2 d3 d4 d5.
    assert run_ahead_limits(made.graph(), names(made)) == {
        "d2": ["d0"], "d3": ["d0", "decay0"], "d4": ["d0", "decay0", "update0"],
        "d5": ["d0", "decay0", "update0", "d1"],
    }  # fmt: skip


def test_only_cpus_are_held_to_an_order() -> None:
    assert keeps_order("/job:localhost/replica:0/task:0/device:CPU:1")
    assert not keeps_order("/job:localhost/replica:0/task:0/device:GPU:0")


@settings(deadline=None, derandomize=True, max_examples=50, database=None)
@given(random_graphs(max_ops=14))
def test_nothing_waits_in_a_circle_and_everything_far_before_has_ended(made: Builder) -> None:
    graph = made.graph()
    limits = run_ahead_limits(graph, names(made))
    before = {
        op.name: {*(graph.tensor[read].producer for read in op.inputs), *op.control_inputs, *limits.get(op.name, ())}
        for op in graph.ops
    }
    done: list[str] = []
    while len(done) < len(before):
        ready = [name for name in before if name not in done and before[name].issubset(done)]
        assert ready
        # No more than a window of ops that work can be ready at a time.
        assert len(ready) <= AHEAD
        done.append(ready[-1])
