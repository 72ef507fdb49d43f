"""Free placements in CP-SAT: items on devices; each device pays for every value that it moves in or out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from partitioner.cost_graphs.solver.loads import device_groups
from partitioner.cost_graphs.solver.problem import MaxLoadProblem, SharedValue

ELSEWHERE = -1
"""The device of fixed items that are on none of the model's devices."""

_SECOND_GOAL = 64
"""Weight of the largest load against the mean of the others in `minimise_all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payment:
    """Whether a device pays for a value."""

    value: SharedValue
    device: int
    pays: cp_model.IntVar


class FreeModel:
    """Assign the free items to some of the devices so that the largest of their loads is minimal.

    Attributes:
        cp: The model; without an objective at first.
        max_load: The largest load.
    """

    def __init__(
        self,
        problem: MaxLoadProblem,
        lower_bound: int,
        upper_bound: int,
        *,
        devices: Sequence[int] | None = None,
        fixed: Mapping[int, int] | None = None,
    ) -> None:
        """Model some devices (all by default) with some items fixed; loads above `upper_bound` are left out."""
        self._problem = problem
        self._devices = list(range(len(problem.devices))) if devices is None else list(devices)
        self._fixed = dict(fixed or {})
        self.cp = cp_model.CpModel()
        self.max_load = self.cp.new_int_var(min(lower_bound, upper_bound), upper_bound, "")
        self.on: dict[int, dict[int, cp_model.IntVar]] = {}
        self._payments: list[_Payment] = []
        self._every_item_has_a_device()
        self._loads: list[Any] = [self._load_on(device) for device in self._devices]
        for load in self._loads:
            self.cp.add(load <= self.max_load)
        self._memory_fits()

    def _every_item_has_a_device(self) -> None:
        for index, item in enumerate(self._problem.items):
            if index not in self._fixed:
                self.on[index] = {d: self.cp.new_bool_var("") for d in self._devices if d not in item.barred}
                self.cp.add_exactly_one(self.on[index].values())

    def _load_on(self, device: int) -> cp_model.LinearExprT:
        place = self._problem.devices[device]
        terms: list[cp_model.LinearExprT] = []
        for index, item in enumerate(self._problem.items):
            if (cost := item.cost_on(place)) and device in self.on.get(index, ()):
                terms.append(cost * self.on[index][device])
            elif self._fixed.get(index) == device:
                terms.append(cost)
        if not place.is_cpu:
            terms += [value.cost * self._pays(value, device) for value in self._problem.values]
        return sum(terms)

    def _pays(self, value: SharedValue, device: int) -> cp_model.IntVar | int:
        homes = {self._fixed[item] for item in value.items if item in self._fixed}
        inside = [self.on[item].get(device) for item in value.items if item in self.on]
        has_outside = bool(homes - {device}) or any(literal is None for literal in inside)
        free = [literal for literal in inside if literal is not None]
        if device in homes and has_outside:
            return 1
        if not free or (len(free) == 1 and not homes and not has_outside):
            return 0
        pays = self.cp.new_bool_var("")
        self._payments.append(_Payment(value=value, device=device, pays=pays))
        if device in homes:
            for literal in free:
                self.cp.add_bool_or(literal, pays)
        elif has_outside:
            for literal in free:
                self.cp.add_implication(literal, pays)
        else:
            # If some of its items are inside and some not, then in a circle of them, inside is followed by outside.
            for a, b in zip(free, (*free[1:], free[0]), strict=True):
                self.cp.add_bool_or(~a, b, pays)
        return pays

    def _memory_fits(self) -> None:
        items = self._problem.items
        held = sum(item.memory_bytes for index, item in enumerate(items) if index in self.on)
        for device in self._devices:
            capacity = self._problem.devices[device].capacity_bytes
            fixed = sum(items[index].memory_bytes for index, home in self._fixed.items() if home == device)
            if capacity is not None and held + fixed > capacity:
                used = [items[index].memory_bytes * on[device] for index, on in self.on.items() if device in on]
                self.cp.add(sum(used) + fixed <= capacity)

    def open_devices_in_order(self) -> None:
        """Break the symmetry of alike devices: heavy items are on early devices."""
        heavy = _heavy_first(self._problem)
        for group in device_groups(self._problem):
            for rank, item in enumerate(heavy[: len(group)]):
                for device in group[rank + 1 :]:
                    if device in self.on[item]:
                        self.cp.add_bool_or(~self.on[item][device])

    def minimise_largest(self) -> None:
        """Minimise the largest load only."""
        self.cp.minimize(self.max_load)

    def minimise_all(self) -> None:
        """Minimise the largest load, and with a small weight the sum of all, to leave room for the next step."""
        self.cp.minimize(_SECOND_GOAL * len(self._devices) * self.max_load + sum(self._loads))

    def hint(self, assignment: Sequence[int]) -> None:
        """Start from an assignment of all items."""
        for index, devices in self.on.items():
            for device, literal in devices.items():
                self.cp.add_hint(literal, assignment[index] == device)
        for payment in self._payments:
            inside = {assignment[item] == payment.device for item in payment.value.items}
            self.cp.add_hint(payment.pays, len(inside) == 2)

    def assignment(self, solver: cp_model.CpSolver | cp_model.CpSolverSolutionCallback) -> tuple[int, ...]:
        """The assignment of a solution; fixed items stay on their devices."""
        chosen = {item: next(d for d, on in devices.items() if solver.value(on)) for item, devices in self.on.items()}
        return tuple(chosen.get(item, self._fixed.get(item, ELSEWHERE)) for item in range(len(self._problem.items)))


def in_order(problem: MaxLoadProblem, assignment: Sequence[int]) -> tuple[int, ...]:
    """The same assignment with alike devices renamed so that `open_devices_in_order` allows it."""
    name: dict[int, int] = {}
    heavy = _heavy_first(problem)
    for group in device_groups(problem):
        seen = dict.fromkeys(assignment[item] for item in heavy if assignment[item] in group)
        name.update(zip([*seen, *(device for device in group if device not in seen)], group, strict=True))
    return tuple(name[device] for device in assignment)


def _heavy_first(problem: MaxLoadProblem) -> list[int]:
    return sorted(range(len(problem.items)), key=lambda item: (-problem.items[item].accelerator_cost, item))
