"""The checker of plans for cost graphs: it accepts what the planner writes and refuses what was changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partitioner.constraints.match import requirements_of
from partitioner.cost_graphs.check import check_plan
from partitioner.cost_graphs.document import CostGraphPlan
from partitioner.cost_graphs.graph import CostGraph, CostNode, CostValue
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.ir.devices import DeviceName

GPU0, GPU1, CPU0 = (DeviceName.parse(name).canonical for name in ("GPU:0", "GPU:1", "CPU:0"))

# A chain of six; 1 and 2 share a device, 5 is a backward node beside 0.
GRAPH = CostGraph(
    nodes=tuple(
        CostNode(
            id=f"n{index}",
            accelerator_cost=cost,
            cpu_cost=20 * cost,
            memory_bytes=10,
            group={1: "pair", 2: "pair"}.get(index),
            is_backward=index == 5,
        )
        for index, cost in enumerate([4.0, 1.0, 2.0, 3.0, 5.0, 1.0])
    ),
    values=tuple(CostValue(source=f"n{index}", targets=(f"n{index + 1}",), cost=0.5) for index in range(5)),
    accelerators=2,
    cpus=1,
    memory_bytes=40,
)


def plan_of(contiguous: bool) -> CostGraphPlan:
    return plan_cost_graph(GRAPH, [], name="six", source="six.json", contiguous=contiguous, time_limit=300)


@pytest.fixture(scope="module")
def plans() -> dict[bool, CostGraphPlan]:
    return {contiguous: plan_of(contiguous) for contiguous in (False, True)}


@pytest.mark.parametrize("contiguous", [False, True])
def test_plans_are_accepted(plans: dict[bool, CostGraphPlan], contiguous: bool) -> None:
    plan = plans[contiguous]
    found = check_plan(plan, GRAPH)
    assert found.problems == ()
    assert found.objective == pytest.approx(plan.solver.objective)
    # 16 of work on two accelerators that can be helped by a CPU that is 20 times slower.
    assert 8.0 <= plan.solver.lower_bound <= plan.solver.objective <= 9.0
    assert found.simple_bound <= plan.solver.lower_bound


def test_plans_keep_to_requirements() -> None:
    asked = requirements_of({"n0": "GPU:1", "n5": "CPU:0"}, {"n4": "GPU:1"}, ["n0|n3"])
    plan = plan_cost_graph(GRAPH, [], name="six", source="six.json", requirements=asked, time_limit=300)
    assert plan.requirements == asked
    assert (plan.placement["n0"], plan.placement["n3"], plan.placement["n5"]) == (GPU1, GPU1, CPU0)
    assert plan.placement["n4"] != GPU1
    assert check_plan(plan, GRAPH).problems == ()
    # The CPU takes 20 for node 5, which nobody can help.
    assert (plan.solver.objective, plan.solver.lower_bound) == (20.0, 20.0)


def with_placement(plan: CostGraphPlan, **moved: str) -> CostGraphPlan:
    return replace(plan, placement={**plan.placement, **moved})


def with_requirements(plan: CostGraphPlan, **asked) -> CostGraphPlan:
    return replace(plan, requirements=requirements_of(**asked))


def with_solver(plan: CostGraphPlan, **changed) -> CostGraphPlan:
    return replace(plan, solver=replace(plan.solver, **changed))


def all_on(plan: CostGraphPlan, device: str) -> CostGraphPlan:
    return replace(plan, placement=dict.fromkeys(plan.placement, device))


MUTATIONS: dict[str, Callable[[CostGraphPlan], CostGraphPlan]] = {
    "nodes are not placed": lambda plan: replace(
        plan, placement={name: device for name, device in plan.placement.items() if name != "n3"}
    ),
    "not of the cost graph: n9": lambda plan: with_placement(plan, n9=GPU0),
    "the nodes of group pair are on 2 devices": lambda plan: with_placement(plan, n1=GPU0, n2=GPU1),
    "would hold 60 bytes of 40": lambda plan: all_on(plan, GPU1),
    "its largest load is 8": lambda plan: with_solver(plan, objective=8.0, gap=0.0, lower_bound=8.0),
    "is above the largest load": lambda plan: with_solver(plan, lower_bound=plan.solver.objective + 0.1),
    "its objective and bound make it": lambda plan: with_solver(plan, gap=0.25),
    "optimal with a gap": lambda plan: with_solver(
        plan, status="optimal", lower_bound=plan.solver.objective / 2, gap=0.5
    ),
    "pin n3=GPU:7: node n3 is on ": lambda plan: with_requirements(plan, pins={"n3": "GPU:7"}),
    "forbid n[0-3]=": lambda plan: with_requirements(plan, forbid={"n[0-3]": ["GPU:0", "GPU:1", "CPU:0"]}),
    "colocate n.: the nodes are on 2 devices": lambda plan: with_requirements(plan, colocate=["n."]),
    "colocate m.: matches no node": lambda plan: with_requirements(plan, colocate=["m."]),
    "values go round": lambda plan: with_placement(plan, n0=GPU0, n1=GPU1, n2=GPU1, n3=GPU0, n4=GPU1),
}


@pytest.mark.parametrize("said", MUTATIONS)
def test_changed_plans_are_refused(plans: dict[bool, CostGraphPlan], said: str) -> None:
    found = check_plan(MUTATIONS[said](plans[True]), GRAPH)
    assert any(said in problem for problem in found.problems), found.problems
    assert found.to_text().startswith("the plan is not what it says\n- ") and said in found.to_text()


def test_every_other_device_of_a_node_is_noticed(plans: dict[bool, CostGraphPlan]) -> None:
    """Moving any node changes the objective or breaks a rule: no figure of the plan fits another placement."""
    plan = plans[False]
    for name, device in plan.placement.items():
        for other in {GPU0, GPU1, CPU0} - {device}:
            found = check_plan(with_placement(plan, **{name: other}), GRAPH)
            assert found.problems or found.objective == pytest.approx(plan.solver.objective)


def test_a_bound_that_a_move_refutes_is_noticed(plans: dict[bool, CostGraphPlan]) -> None:
    """Everything on one accelerator with room takes 16; without its first node, 12 and a value."""
    roomy = replace(
        all_on(plans[False], GPU0),
        devices=tuple(replace(device, memory_bytes=0) for device in plans[False].devices),
    )
    lie = with_solver(roomy, objective=16.0, lower_bound=16.0, gap=0.0, status="optimal")
    found = check_plan(lie, GRAPH)
    assert len(found.problems) == 1 and "moving a group gives 12.5" in found.problems[0]
