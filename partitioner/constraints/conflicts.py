"""Find requirements that contradict each other before the search, and report a smallest set of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from networkx.utils import UnionFind

from partitioner.errors import InfeasibleError
from partitioner.ir.devices import listed_devices
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.spelling import listed

T = TypeVar("T")
Root = TypeVar("Root", bound=Hashable)


def smallest_conflict(facts: Sequence[T], can_hold: Callable[[Sequence[T]], bool]) -> list[T]:
    """A minimal set of facts that cannot hold together: any of its proper subsets can hold (a deletion filter).

    J. Chinneck, E. Dravnieks, "Locating minimal infeasible constraint sets in linear programs", 1991. Calls `can_hold`
    once for each fact.

    Args:
        facts: Facts that cannot hold together; if there are several conflicts, the result prefers late facts.
        can_hold: Whether a subset of them can hold together.
    """
    needed = list(facts)
    for fact in facts:
        others = [other for other in needed if other is not fact]
        if not can_hold(others):
            needed = others
    return needed


def allowed_devices(
    set_of: Mapping[str, Root], constraints: Sequence[ResolvedConstraint], num_devices: int
) -> tuple[UnionFind, dict[Root, frozenset[int]]]:
    """Join sets of ops that share a device by the constraints; returns them, and the devices of restricted sets.

    Args:
        set_of: Name of the set of each op.
        constraints: The constraints.
        num_devices: Number of devices.
    """
    joined: UnionFind = UnionFind()
    for constraint in constraints:
        if constraint.together:
            joined.union(*dict.fromkeys(set_of[op] for op in constraint.ops))
    left: dict[Root, frozenset[int]] = {}
    everywhere = frozenset(range(num_devices))
    for constraint in constraints:
        if constraint.devices is not None:
            for root in dict.fromkeys(joined[set_of[op]] for op in constraint.ops):
                left[root] = left.get(root, everywhere) & constraint.devices
    return joined, left


def refuse_contradictions(
    set_of: Mapping[str, Root],
    constraints: Sequence[ResolvedConstraint],
    devices: Sequence[str],
    *,
    title: Callable[[str], str] = str,
    what: str = "the model",
) -> None:
    """Refuse constraints that leave a set of ops without a device.

    Args:
        set_of: Name of the set of ops with which each op shares a device.
        constraints: The constraints.
        devices: Canonical names.
        title: Gives the name of an op in messages.
        what: Name of the model or graph in messages.

    Raises:
        InfeasibleError: A smallest set of constraints that contradict each other, and their ops.
    """

    def torn(some: Sequence[ResolvedConstraint]) -> Hashable | None:
        _, left = allowed_devices(set_of, some, len(devices))
        return next((root for root, places in left.items() if not places), None)

    if torn(constraints) is None:
        return
    conflict = smallest_conflict(constraints, lambda some: torn(some) is None)
    joined, _ = allowed_devices(set_of, conflict, len(devices))
    root = joined[torn(conflict)]
    members = [op for op, own in set_of.items() if joined[own] == root]
    named = {
        constraint.text: {title(op): None for op in constraint.ops if joined[set_of[op]] == root}
        for constraint in conflict
    }
    about = list(dict.fromkeys(name for names in named.values() for name in names))
    notes = [
        f"{constraint.text}: {_meaning(constraint, list(named[constraint.text]), devices)}" for constraint in conflict
    ]
    if len(about) > 1:
        notes.append(f"{listed(about)} share a device, with {len(members)} ops in all")
    raise InfeasibleError(
        f"no placement of {what} can meet {len(conflict)} of the requirements together",
        notes=notes,
        help="leave out any one of them",
    )


def overfull(
    sizes: Sequence[int], allowed: Sequence[frozenset[int]], capacities: Sequence[float]
) -> frozenset[int] | None:
    """Devices whose items exceed their memory in every placement; None if no simple count shows such devices.

    Args:
        sizes: Bytes of each item.
        allowed: Devices that each item may be on.
        capacities: Bytes of each device; infinite without limit.
    """
    for size, places in zip(sizes, allowed, strict=True):
        if size > max((capacities[device] for device in places), default=0):
            return places
    held: dict[frozenset[int], int] = dict.fromkeys([frozenset(range(len(capacities)))], 0)
    for size, places in zip(sizes, allowed, strict=True):
        held[places] = held.get(places, 0) + size
    for places in held:
        if sum(size for some, size in held.items() if some <= places) > sum(capacities[device] for device in places):
            return places
    return None


def _meaning(constraint: ResolvedConstraint, names: Sequence[str], devices: Sequence[str]) -> str:
    if constraint.devices is None:
        return f"{listed(names)} share a device"
    places = listed_devices([devices[device] for device in sorted(constraint.devices)]) or "no device"
    return f"{listed(names)} may be on {places} only"
