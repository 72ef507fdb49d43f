"""The host of a GPU starts its ops one by one, unless XLA compiles them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import Builder, topology

from cost_models.catalogue import device_named
from cost_models.gpu_constants import GPU
from cost_models.topology import Topology
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.simulate.unpipelined import simulate


def step(*sizes_bytes: int) -> OpGraph:
    """Exponentials in a row, each of a tensor of its own."""
    made = Builder()
    for index, size in enumerate(sizes_bytes):
        made.add(f"x{index}", type="Placeholder", size_bytes=size)
        made.add(f"o{index}", 0.0, f"x{index}", type="Exp", size_bytes=size)
    return made.graph(outputs=[f"o{index}" for index in range(len(sizes_bytes))])


def machines(name: str = "v100-16gb") -> Topology:
    made = topology(1)
    return replace(made, devices=tuple(replace(placed, device=device_named(name)) for placed in made.devices))


def seconds(graph: OpGraph, *, compiled: bool = False) -> float:
    names = frozenset(op.name for op in graph.ops) if compiled else frozenset[str]()
    costed = cost_ops(graph, machines(), compiled=names)
    return simulate(costed, {op.name: 0 for op in graph.ops}).step_seconds


def taken(size_bytes: int) -> float:
    device = device_named("v100-16gb")
    moved = 2 * size_bytes / (device.memory_bandwidth_bytes_per_second * GPU.bandwidth_share)
    return moved + device.launch_overhead_seconds


def test_short_ops_wait_for_the_host() -> None:
    assert seconds(step(4, 4, 4)) == pytest.approx(3 * GPU.dispatch_seconds + taken(4))


def test_while_a_long_op_runs_the_host_gets_ahead() -> None:
    long = 1 << 28
    assert seconds(step(long, 4, 4)) == pytest.approx(GPU.dispatch_seconds + taken(long) + 2 * taken(4))


def test_a_compiled_step_does_not_wait() -> None:
    assert seconds(step(4, 4, 4), compiled=True) == pytest.approx(3 * taken(4))


def test_devices_without_known_multiprocessors_have_it_in_their_launch() -> None:
    graph = step(4, 4)
    assert cost_ops(graph, topology(1)).dispatch_seconds == (0.0,)
