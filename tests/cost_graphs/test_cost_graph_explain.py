"""Why no placement of a cost graph is allowed, what would help, and what better devices gain: by hand."""

from __future__ import annotations

import pytest
from instances import graph

from partitioner.constraints.match import requirements_of
from partitioner.cost_graphs.document import CostGraphPlan
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import parse_devices

TWO = parse_devices("GPU:0-1")


def chain(held: float = 10.0) -> CostGraph:
    """Four nodes in a row, of 4 each, that hold 10 bytes each; moving a value costs 1."""
    return graph([4.0] * 4, [(0, 1), (1, 2), (2, 3)], [1.0] * 4, memory_bytes=[held] * 4)


def plan(of: CostGraph, **options) -> CostGraphPlan:
    return plan_cost_graph(of, TWO, **{"name": "four", "source": "four.json", "time_limit": 300, **options})


def refused(**options) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as raised:
        plan(chain(), **options)
    return raised.value


def test_a_pin_that_leaves_too_little_room() -> None:
    """Three nodes of 10 on 25 bytes; where the fourth is pinned does not matter."""
    asked = requirements_of({"[012]": "GPU:0", "3": "GPU:1"})
    error = refused(requirements=asked, memory_limit="25")
    assert error.message == "no placement keeps to what is asked within the memory of the devices"
    assert error.notes == ("the nodes hold 40 bytes", "pin [012]=GPU:0", "GPU:0 holds at most 25 bytes")
    assert error.help == "leave out pin [012]=GPU:0, or 5 bytes more on each device"
    assert plan(chain(), requirements=asked, memory_limit="30").placement["0"].endswith("GPU:0")
    with pytest.raises(InfeasibleError):
        plan(chain(), requirements=asked, memory_limit="29")


def test_pieces_that_cannot_be_contiguous() -> None:
    """Both ends together are all of a contiguous row: 40 bytes on 25."""
    error = refused(requirements=requirements_of(colocate=["0|3"]), contiguous=True, memory_limit="25")
    assert error.message.endswith("within the memory of the devices in contiguous pieces")
    assert set(error.notes) == {
        "the nodes hold 40 bytes",
        "colocate 0|3",
        "contiguous",
        "GPU:0 holds at most 25 bytes",
        "GPU:1 holds at most 25 bytes",
    }
    assert error.help == "leave out colocate 0|3, or leave out contiguous, or 15 bytes more on each device"


def test_devices_are_added_until_there_is_room() -> None:
    error = refused(memory_limit="10")
    assert error.notes == ("needs 40 bytes", "have  20 bytes on 2 devices")
    assert error.help == "10 bytes more on each device, or add 2 devices"


def test_what_better_devices_gain() -> None:
    """Two each is 8 and a value; a third device has one: 4 and two values; free moves would save the 1."""
    gains = plan(chain(), memory_limit="25", what_if=True).what_if
    assert [(one.change, one.before, one.after, one.unit) for one in gains] == [
        ("one more device like GPU:1", 9.0, 9.0, "ms"),
        ("twice the bandwidth of every link", 9.0, 8.5, "ms"),
        ("1 GiB more on GPU:0", 9.0, 9.0, "ms"),
    ]
