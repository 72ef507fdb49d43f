"""Requirements that contradict each other: refused with the fewest that explain it, and no others."""

from __future__ import annotations

from itertools import combinations

import pytest
from graphs import Builder
from hypothesis import given
from hypothesis import strategies as st

from partitioner.constraints.conflicts import allowed_devices, refuse_contradictions, smallest_conflict
from partitioner.constraints.match import requirements_of, resolve_constraints
from partitioner.errors import InfeasibleError
from partitioner.ir.devices import parse_devices
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsen import coarsen

DEVICES = [device.canonical for device in parse_devices("GPU:0,GPU:1")]


def refused(**asked) -> InfeasibleError:
    """Three layers, of which the first and the last have an op in one group."""
    made = Builder()
    made.add("a", 1.0, layer="one", group="tied")
    made.add("b", 1.0, "a", layer="two")
    made.add("c", 1.0, "b", layer="three", group="tied")
    costed = made.costed()
    constraints = resolve_constraints(
        costed.graph, requirements_of(**asked), [[d] for d in parse_devices("GPU:0,GPU:1")]
    )
    with pytest.raises(InfeasibleError) as raised:
        coarsen(costed, constraints=constraints)
    return raised.value


def test_a_pin_against_a_forbid() -> None:
    error = refused(pins={"two": "GPU:0", "one": "GPU:1"}, forbid={"t.*": "GPU:0"}, colocate=["one"])
    assert error.exit_code == 4
    assert error.message == "no placement of the model can meet 2 of the requirements together"
    assert error.notes == ("pin two=GPU:0: two may be on GPU:0 only", "forbid t.*=GPU:0: two may be on GPU:1 only")
    assert error.help == "leave out any one of them"


def test_colocated_layers_pinned_apart() -> None:
    error = refused(pins={"one": "GPU:0", "two": "GPU:1"}, colocate=["one|two"])
    assert error.notes == (
        "pin one=GPU:0: one may be on GPU:0 only",
        "pin two=GPU:1: two may be on GPU:1 only",
        "colocate one|two: one, two share a device",
        "one, two share a device, with 3 ops in all",
    )


def test_what_shares_a_device_anyhow_pinned_apart() -> None:
    error = refused(pins={"one": "GPU:0", "three": "GPU:1"})
    assert error.notes[-1] == "one, three share a device, with 2 ops in all"


def test_what_belongs_to_no_layer_goes_by_its_variable() -> None:
    made = Builder()
    made.add("a", 1.0, layer="one")
    made.variable("optimizer/learning_rate", 4)
    made.add("optimizer/Cast/ReadVariableOp", 1.0, variables=["optimizer/learning_rate"])
    graph = made.costed().graph
    asked = requirements_of(pins={"optimizer/.*": "GPU:0"}, forbid={"optimizer/.*": "GPU:0"})
    constraints = resolve_constraints(graph, asked, [[device] for device in parse_devices("GPU:0,GPU:1")])
    with pytest.raises(InfeasibleError) as raised:
        coarsen(made.costed(), constraints=constraints)
    assert raised.value.notes[0] == "pin optimizer/.*=GPU:0: optimizer/learning_rate may be on GPU:0 only"


def test_forbidden_everywhere() -> None:
    assert refused(forbid={"two": ["GPU:0", "GPU:1"]}).notes == (
        "forbid two=GPU:0,GPU:1: two may be on no device only",
    )
    assert len(refused(forbid={"two": "GPU:0", "tw.": "GPU:1"}).notes) == 2


@st.composite
def some_rules(draw: st.DrawFn) -> tuple[ResolvedConstraint, ...]:
    places = st.frozensets(st.integers(0, 1), max_size=2)
    ops = st.lists(st.sampled_from("abcd"), min_size=1, unique=True).map(tuple)
    made = [
        ResolvedConstraint(text=f"constraint {n}", ops=draw(ops), together=True)
        if draw(st.booleans())
        else ResolvedConstraint(text=f"constraint {n}", ops=draw(ops), devices=draw(places))
        for n in range(draw(st.integers(1, 6)))
    ]
    return tuple(made)


def has_placement(constraints: tuple[ResolvedConstraint, ...]) -> bool:
    """By trying all placements of four ops on two devices."""
    for bits in range(2**4):
        device = {op: bits >> n & 1 for n, op in enumerate("abcd")}
        if all(
            (constraint.devices is None or all(device[op] in constraint.devices for op in constraint.ops))
            and not (constraint.together and len({device[op] for op in constraint.ops}) > 1)
            for constraint in constraints
        ):
            return True
    return False


@given(some_rules())
def test_the_named_rules_conflict_and_no_fewer_do(constraints: tuple[ResolvedConstraint, ...]) -> None:
    set_of = {op: op for op in "abcd"}
    if has_placement(constraints):
        refuse_contradictions(set_of, constraints, DEVICES)
        joined, left = allowed_devices(set_of, constraints, 2)
        assert all(left.get(joined[op], {0, 1}) for op in "abcd")
        return
    with pytest.raises(InfeasibleError) as raised:
        refuse_contradictions(set_of, constraints, DEVICES)
    named = [
        constraint
        for constraint in constraints
        if any(note.startswith(f"{constraint.text}:") for note in raised.value.notes)
    ]
    assert not has_placement(tuple(named))
    assert all(has_placement(some) for some in combinations(named, len(named) - 1))


def test_the_deletion_filter() -> None:
    """Of 1..9 no four may be together that sum to 10: 1, 2, 3, 4 is the only such set."""
    found = smallest_conflict(range(1, 10), lambda some: not {1, 2, 3, 4} <= set(some))
    assert found == [1, 2, 3, 4]
