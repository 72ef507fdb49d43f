"""Large problems: the order is cut well, its pieces are allowed, and the bound is one of the graph as asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import cost_graphs, device_lists, gpu, graph, requirement_lists

from partitioner.cost_graphs.constraints import resolve_node_constraints
from partitioner.cost_graphs.formulate import build_problem
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.cost_graphs.solver.loads import loads, violations
from partitioner.cost_graphs.solver.problem import LoadDevice
from partitioner.cost_graphs.solver.reduce.even import cut_evenly, linear_orders
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import DeviceName, parse_devices
from tests.benchmarks.scaling import transformer


@given(data=st.data(), of=cost_graphs(), devices=device_lists(), contiguous=st.booleans())
@settings(max_examples=60, deadline=None)
def test_pieces_of_a_row_are_allowed(
    data: st.DataObject, of: CostGraph, devices: tuple[LoadDevice, ...], contiguous: bool
) -> None:
    asked = data.draw(requirement_lists(of, devices))
    try:
        rules = resolve_node_constraints(of, asked, [DeviceName.parse(device.name) for device in devices])
        problem = build_problem(of, devices, constraints=rules, contiguous=contiguous).problem
    except InfeasibleError:
        return
    for order in linear_orders(problem):
        if len(order) < len(problem.items):  # what precedes each other both ways is merged before
            continue
        assert sorted(order) == list(range(len(problem.items)))
        found = cut_evenly(problem, order)
        assert found is None or not any(violations(problem, found))


def test_a_chain_is_cut_where_a_dynamic_program_would() -> None:
    of = graph([float(1 + index % 3) for index in range(60)], [(index, index + 1) for index in range(59)])
    problem = build_problem(of, tuple(gpu(index) for index in range(4)), contiguous=True).problem
    order = next(linear_orders(problem))
    found = cut_evenly(problem, order)
    assert found is not None
    # 120 of work in four pieces, of which the inner ones move two values: 29, 31, 31 and 29, or one more somewhere.
    unit = build_problem(of, (gpu(0),)).unit
    assert max(loads(problem, found)) * unit == pytest.approx(32.0, abs=1.0)


@pytest.mark.parametrize("contiguous", [False, True])
def test_ten_thousand_ops_on_eight_devices(contiguous: bool) -> None:
    """A small share of the work has to be moved; a bound of that share cannot be had by cutting the graph badly."""
    of = transformer(10_000)
    fields = plan_cost_graph(
        of, parse_devices("GPU:0-7"), name="large", source="made", contiguous=contiguous, time_limit=10
    )
    plan = fields
    work = sum(node.accelerator_cost for node in of.nodes)
    assert work / 8 * (1 - 1e-6) <= plan.solver.lower_bound <= plan.solver.objective
    assert plan.solver.gap <= 0.05
    assert len(plan.placement) == len(of.nodes)
