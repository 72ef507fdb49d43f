"""Cost graphs read from files: what they say, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partitioner.cost_graphs.read import read_cost_graph
from partitioner.errors import ModelError


def node(number: int, **changed: Any) -> dict[str, Any]:
    return {"id": number, "cpuLatency": 10.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "size": 5.0, **changed}


def edge(source: int, target: int, cost: float = 0.5) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


def workload(**changed: Any) -> dict[str, Any]:
    whole = {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [node(1), node(2, colorClass=7, isBackwardNode=True), node(3, colorClass=7, supportedOnFpga=0)],
        "edges": [edge(1, 2), edge(1, 3)],
    }
    return {**whole, **changed}


@pytest.fixture
def write(tmp_path: Path):
    def write(content: dict[str, Any] | str, name: str = "work.json") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_a_workload(write) -> None:
    graph = read_cost_graph(write(workload()))
    assert (graph.accelerators, graph.cpus, graph.memory_bytes, graph.unit) == (2, 1, 100.0, "ms")
    one, two, three = graph.nodes
    assert (one.id, one.accelerator_cost, one.cpu_cost, one.memory_bytes, one.group) == ("1", 1.0, 10.0, 5.0, None)
    assert (two.is_backward, two.group, three.group) == (True, "7", "7")
    assert (one.needs_cpu, three.needs_cpu) == (False, True)
    (value,) = graph.values
    assert (value.source, value.targets, value.cost) == ("1", ("2", "3"), 0.5)


PROFILE = """\
node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=9.0, activation_size=1000.0, parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=2.5, backward_compute_time=4.0, \
activation_size=[2000000.0; 1000000.0], parameter_size=6912.000
node3 -- Linear(4, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=40.0
\tnode1 -- node2
\tnode2 -- node3
"""


def test_a_profile(write) -> None:
    graph = read_cost_graph(write(PROFILE, "graph.txt"))
    assert [node.id for node in graph.nodes] == ["node1", "node2", "node3"]
    assert [node.accelerator_cost for node in graph.nodes] == [0.0, 6.5, 3.0]
    assert graph.nodes[1].description == "Conv2d(3, 64, kernel_size=(3, 3))"
    assert graph.nodes[1].memory_bytes == 6912.0
    # Loading data costs nothing; 3 MB take 3 ms at 1 GB/s, forward and back.
    assert [(value.source, value.cost) for value in graph.values] == [("node1", 0.0), ("node2", pytest.approx(6.0))]
    assert graph.accelerators is None


WRONG: dict[str, dict[str, Any] | str] = {
    "the JSON cannot be read": '{"nodes": [NaN], "edges": []}',
    "the workload has no edges": {"nodes": []},
    "there are no nodes": workload(nodes=[], edges=[]),
    "node 1 is listed 2 times": workload(nodes=[node(1), node(1)], edges=[]),
    "node 1 has the unknown key 'fpgaLatenzy'; did you mean 'fpgaLatency'?": workload(nodes=[node(1, fpgaLatenzy=2)]),
    "the workload has the unknown key 'maxFPGA'; did you mean 'maxFPGAs'?": workload(maxFPGA=2),
    "node 1 has no cpuLatency": workload(nodes=[{"id": 1, "fpgaLatency": 1.0}]),
    "node 1 has fpgaLatency 'fast'; expected a number": workload(nodes=[node(1, fpgaLatency="fast")]),
    "node 1 has the accelerator cost -1.0; expected a number of at least 0": workload(
        nodes=[node(1, fpgaLatency=-1.0)], edges=[]
    ),
    "node 1 has the size -5.0": workload(nodes=[node(1, size=-5.0)], edges=[]),
    "the edge 1 -> 4 names the unknown node 4": workload(edges=[edge(1, 4)]),
    "the value of node 1 has the cost -0.5": workload(edges=[edge(1, 2, -0.5)]),
    "the edge 1 -> 3 costs 0.7, another edge from 1 costs 0.5": workload(edges=[edge(1, 2), edge(1, 3, 0.7)]),
    "3 nodes wait for each other in a cycle": workload(edges=[edge(1, 2), edge(2, 3), edge(3, 1)]),
    "node number 0 is 7; expected an object": workload(nodes=[7]),
    "edge number 0 has no cost": workload(edges=[{"sourceId": 1, "destId": 2}]),
    "the workload has maxFPGAs 2.5; expected a whole number": workload(maxFPGAs=2.5),
    "an accelerator holds -1.0 bytes": workload(maxSizePerFPGA=-1.0),
    "the file is for -2 accelerators": workload(maxFPGAs=-2),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_workload_is_told_by_its_offender(write, said: str) -> None:
    path = write(WRONG[said])
    with pytest.raises(ModelError) as caught:
        read_cost_graph(path)
    assert said in str(caught.value)
    assert caught.value.where == path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("activation_size=8.0", "activation_size=many"), "line 3 (node node3): could not convert"),
        (("\tnode2 -- node3", "\tnode2 node3"), "line 5 is no edge `ID -- ID`"),
        (("forward_compute_time=1.0", "forward_compute_time=nan"), "node node3 has the CPU cost nan"),
        (("backward_compute_time=2.0, ", ""), "line 3 (node node3) has no backward_compute_time"),
        (("\tnode2 -- node3", "\tnode3 -- node2\n\tnode2 -- node3"), "2 nodes wait for each other in a cycle"),
    ],
)
def test_a_wrong_profile_is_told_by_its_line(write, changed: tuple[str, str], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_cost_graph(write(PROFILE.replace(*changed), "graph.txt"))
    assert said in str(caught.value)
