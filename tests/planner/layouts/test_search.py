"""The search against brute force, known optima, and everything it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import networkx as nx
import pytest
from graphs import Builder, chain, largest_peak, link, pinned, random_graphs, topology, training_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.errors import InfeasibleError, UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Objective, Strategy
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.ir.schedule import Schedule
from partitioner.planner.bounds.step_time import lower_bound_seconds
from partitioner.planner.layouts.search import SearchResult, search
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.model.tolerances import LEAST_GAIN
from partitioner.planner.simulate.unpipelined import simulate

FAST = link(latency_seconds=2.0**-10, bandwidth_bytes_per_second=2.0**40)
TOLERANCE = 1.01


def find(costed: CostedGraph, strategy: Strategy = Strategy.AUTO, **options) -> SearchResult:
    return search(costed, strategy=strategy, time_limit_seconds=15.0, **options)


def all_schedules(costed: CostedGraph) -> list[Schedule]:
    """The simulation of every placement of the items that fits."""
    result = coarsen(costed)
    devices = costed.topology.devices
    schedules = []
    for assignment in product(range(len(devices)), repeat=len(result.items)):
        placement = {name: assignment[item] for name, item in result.item_of.items()}
        schedule = simulate(costed, placement)
        if all(schedule.peak[d.name].total_bytes <= d.memory_bytes for d in devices):
            schedules.append(schedule)
    return schedules


def two_towers() -> Builder:
    made = Builder()
    for tower in "ab":
        made.add(f"{tower}0", 2.0, layer=f"{tower}0")
        made.add(f"{tower}1", 2.0, f"{tower}0", layer=f"{tower}1")
    made.add("join", 0.5, "a1", "b1", layer="join")
    return made


def test_two_towers_go_to_two_devices() -> None:
    result = find(two_towers().costed(topology(2, wire=FAST)))
    place = result.placement
    assert place["a0"] == place["a1"] != place["b0"] == place["b1"]
    assert result.schedule.step_seconds == pytest.approx(4.5, abs=0.01)


def test_one_device_is_enough_where_cutting_costs_more() -> None:
    result = find(two_towers().costed(topology(2, wire=link(latency_seconds=100.0))))
    assert len(set(result.placement.values())) == 1
    assert result.schedule.step_seconds == 8.5


def test_a_chain_that_does_not_fit_is_cut_at_its_cheapest_edge() -> None:
    made = chain([1.0] * 4, [2**20, 2**10, 2**20, 256], [2**22] * 4)
    result = find(made.costed(topology(2, memory_bytes=3 * 2**22 + 2**21 + 2**20)))
    assert [result.placement[f"op{index}"] for index in range(4)] in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_a_settled_plan_needs_no_solver_and_is_proved() -> None:
    result = find(chain([1.0] * 4, [4] * 4).costed(topology(3)))
    assert (result.solver.status, result.solver.gap, result.solver.seconds) == ("optimal", 0.0, 0.0)
    assert result.solver.objective == result.solver.lower_bound == 4.0


def test_a_layer_split_uses_every_device_even_where_it_does_not_pay() -> None:
    costed = chain([1.0] * 4, [2**10] * 4).costed(topology(3, wire=link()))
    result = find(costed, Strategy.LAYER_SPLIT)
    assert set(result.placement.values()) == {0, 1, 2}
    # Two edges are cut, each 0.25 s + 4 s.
    assert result.schedule.step_seconds == 4.0 + 2 * 4.25


def test_single_takes_the_best_device() -> None:
    result = find(two_towers().costed(topology(2, speeds=[1.0, 2.0])), Strategy.SINGLE)
    assert set(result.placement.values()) == {1}
    assert result.schedule.step_seconds == 4.25


def test_baselines_stand_beside_the_plan() -> None:
    result = find(two_towers().costed(topology(2, wire=FAST)))
    assert [baseline.name for baseline in result.baselines] == [
        "single-device GPU:0",
        "equal-layers",
        "greedy-by-bytes",
    ]
    assert result.baselines[0].step_seconds == 8.5


def test_memory_as_objective_gives_the_smallest_largest_peak() -> None:
    made = chain([1.0] * 5, [256] * 5, [2**20, 3 * 2**19, 2**19, 2**20, 2**19])
    costed = made.costed(topology(2))
    result = find(costed, objective=Objective.MEMORY)
    assert largest_peak(result.schedule) == min(map(largest_peak, all_schedules(costed)))


def test_alike_devices_are_named_in_the_order_the_layers_reach_them() -> None:
    made = chain([1.0] * 3, [256] * 3, [2**20] * 3)
    result = find(made.costed(topology(4, memory_bytes=3 * 2**19)))
    assert [result.placement[f"op{index}"] for index in range(3)] == [0, 1, 2]
    unlike = made.costed(topology(4, memory_bytes=[2**10, 3 * 2**19, 2**10, 2**22]))
    assert set(find(unlike).placement.values()) <= {1, 3}


def test_a_note_says_when_parts_were_joined() -> None:
    assert find(chain([1.0] * 64, [4] * 64).costed()).notes == ()
    assert find(chain([1.0] * 65, [4] * 65).costed()).notes == (
        "light parts were joined to their neighbours, until 64 remained to be placed",
    )


def test_pins_are_kept() -> None:
    costed = two_towers().costed(topology(2, wire=FAST))
    result = find(costed, constraints=pinned(a0=1, b1=1, join=0))
    assert [result.placement[name] for name in ("a0", "b1", "join")] == [1, 1, 0]


def test_single_with_pins_to_two_devices() -> None:
    with pytest.raises(InfeasibleError) as raised:
        find(two_towers().costed(), Strategy.SINGLE, constraints=pinned(a0=0, b0=1, a1=0))
    single, first, second, _ = raised.value.notes
    assert single.startswith("strategy single: ")
    assert (first, second) == ("pin b0=GPU:1: b0 may be on GPU:1 only", "pin a1=GPU:0: a1 may be on GPU:0 only")


def test_single_takes_the_only_device_that_is_left() -> None:
    constraints = [forbidden("a0", 0, 3), forbidden("b1", 1, 3)]
    result = find(two_towers().costed(topology(3, wire=FAST)), Strategy.SINGLE, constraints=constraints)
    assert set(result.placement.values()) == {2}


def test_a_layer_split_cannot_use_a_device_where_nothing_may_be() -> None:
    costed = two_towers().costed(topology(3, wire=FAST))
    whole = ResolvedConstraint(text="forbid .*=GPU:1", ops=tuple(costed.graph.op), devices=frozenset({0, 2}))
    with pytest.raises(InfeasibleError, match="cannot use GPU:1") as raised:
        find(costed, Strategy.LAYER_SPLIT, constraints=[whole])
    assert raised.value.notes == ("forbid .*=GPU:1",)


def forbidden(op: str, *devices_of_count: int) -> ResolvedConstraint:
    """A device, and how many there are: the op may be on any other."""
    device, count = devices_of_count
    return ResolvedConstraint(text=f"forbid {op}=GPU:{device}", ops=(op,), devices=frozenset(range(count)) - {device})


def test_a_layer_split_of_too_few_parts() -> None:
    with pytest.raises(UsageError, match="2 parts that can be placed, fewer than 3 devices"):
        find(chain([1.0] * 2, [4] * 2).costed(topology(3)), Strategy.LAYER_SPLIT)


def test_gradients_and_saved_activations_need_not_fit_together() -> None:
    """What two devices hold at once is less than what they keep in all, which does not fit."""
    made = training_chain(4, parameter_bytes=2**20, slot_bytes=0, saved_bytes=2**20)
    costed = made.costed(topology(2, memory_bytes=5 * 2**20 + 2**19))
    assert all_schedules(costed)
    find(costed)


cases = st.tuples(random_graphs(max_ops=6), st.sampled_from([2, 3]), st.sampled_from([FAST, link(0.25, 1024.0)]))


@settings(max_examples=15)
@given(cases)
def test_never_worse_than_a_baseline_and_close_to_the_best_of_all(case) -> None:
    made, count, wire = case
    costed = made.costed(topology(count, wire=wire))
    result = find(costed)
    step = result.schedule.step_seconds
    assert step <= min(baseline.step_seconds for baseline in result.baselines)
    assert step <= min(s.step_seconds for s in all_schedules(costed)) * TOLERANCE
    bound = lower_bound_seconds(costed)
    assert result.solver.lower_bound == min(bound, step)
    assert step * (1 - result.solver.gap) == pytest.approx(result.solver.lower_bound)


@settings(max_examples=15)
@given(random_graphs(max_ops=6), st.integers(1, 4))
def test_limits_are_kept_or_nothing_fits(made: Builder, limit: int) -> None:
    costed = made.costed(topology(2, memory_bytes=limit * 512, wire=FAST))
    possible = all_schedules(costed)
    try:
        result = find(costed)
    except InfeasibleError:
        assert not possible
    else:
        assert largest_peak(result.schedule) <= limit * 512
        assert result.schedule.step_seconds <= min(s.step_seconds for s in possible) * TOLERANCE


@settings(max_examples=8)
@given(random_graphs(max_ops=6))
def test_the_smallest_largest_peak(made: Builder) -> None:
    costed = made.costed(topology(2, wire=FAST))
    result = find(costed, objective=Objective.MEMORY)
    assert largest_peak(result.schedule) == min(map(largest_peak, all_schedules(costed)))


@settings(max_examples=8)
@given(random_graphs(max_ops=6))
def test_one_seed_gives_one_placement(made: Builder) -> None:
    costed = made.costed(topology(2, wire=FAST))
    assert find(costed, seed=3).placement == find(costed, seed=3).placement


@st.composite
def rules_for(draw: st.DrawFn, ops: Sequence[str], count: int) -> tuple[ResolvedConstraint, ...]:
    """Up to three constraints of any kind over some of the ops."""
    some = st.lists(st.sampled_from(ops), min_size=1, max_size=3, unique=True).map(tuple)
    devices = st.one_of(st.none(), st.frozensets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    made = []
    for number in range(draw(st.integers(1, 3))):
        places = draw(devices)
        made.append(ResolvedConstraint(text=f"{number}", ops=draw(some), devices=places, together=places is None))
    return tuple(made)


def obeys(placement: Mapping[str, int], constraints: Sequence[ResolvedConstraint]) -> bool:
    return all(
        (constraint.devices is None or all(placement[op] in constraint.devices for op in constraint.ops))
        and not (constraint.together and len({placement[op] for op in constraint.ops}) > 1)
        for constraint in constraints
    )


def every_placement(costed: CostedGraph) -> Iterator[dict[str, int]]:
    """All that keep layers and colocation groups together."""
    together: nx.Graph = nx.Graph()
    for op in costed.graph.ops:
        together.add_node(op.name)
        together.add_edges_from(
            (op.name, f"{key} {value}") for key, value in (("layer", op.layer), ("group", op.colocation_group)) if value
        )
    parts = list(nx.connected_components(together))
    for devices in product(range(len(costed.topology.devices)), repeat=len(parts)):
        yield {op: device for part, device in zip(parts, devices, strict=True) for op in part if op in costed.graph.op}


@settings(max_examples=25, deadline=None)
@given(st.data(), random_graphs(max_ops=8, free_ops=False), st.sampled_from([2, 3]), st.sampled_from(list(Objective)))
def test_brute_force_agrees_under_rules_and_limits(data, made: Builder, count: int, objective: Objective) -> None:
    """Of ops that take time: those that take none stay with their neighbours, also where memory would gain."""
    constraints = data.draw(rules_for([op.name for op in made.ops], count))
    limit = data.draw(st.sampled_from([2**40, 2**12, 2**11]))
    costed = made.costed(topology(count, memory_bytes=limit, wire=FAST))
    allowed = [simulate(costed, one) for one in every_placement(costed) if obeys(one, constraints)]
    fitting = [schedule for schedule in allowed if largest_peak(schedule) <= limit]
    if not fitting:
        with pytest.raises(InfeasibleError):
            find(costed, objective=objective, constraints=constraints)
        return
    result = find(costed, objective=objective, constraints=constraints)
    assert obeys(result.placement, constraints)
    assert largest_peak(result.schedule) <= limit
    if objective is Objective.MEMORY:
        assert largest_peak(result.schedule) <= min(map(largest_peak, fitting))
    else:
        is_on_one = len(set(result.placement.values())) == 1
        most = 1 + LEAST_GAIN if is_on_one else TOLERANCE
        assert result.schedule.step_seconds <= min(one.step_seconds for one in fitting) * most
