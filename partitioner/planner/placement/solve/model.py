"""The placement problem as a CP-SAT model: variables, then one method per constraint, then one objective.

Every task has a start and an end; every (task, device) an optional interval that is present when the task's
item is on the device. Redundant constraints, which cut off no solution, are there to lift the lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ortools.sat.python import cp_model

from partitioner.ir.problem import PlacementProblem
from partitioner.planner.placement.solve.bounds import Bounds
from partitioner.planner.placement.solve.evaluate import (
    ScheduledAssignment,
    allowed_devices,
    delay_ns,
    precedences,
)
from partitioner.planner.placement.solve.symmetry import canonical, interchangeable_devices


class PlacementModel:
    """CP-SAT model of a problem all of whose items fit somewhere, with schedules of at most `horizon_ns`."""

    def __init__(self, problem: PlacementProblem, bounds: Bounds, horizon_ns: int) -> None:
        self.cp = cp_model.CpModel()
        self._problem = problem
        self._bounds = bounds
        self._horizon_ns = horizon_ns
        self._devices = range(len(problem.devices))
        self._groups = interchangeable_devices(problem)
        self._allowed = allowed_devices(problem)
        self._precedences = precedences(problem)

        self._never = self.cp.new_constant(0)
        self.on = [{d: self.cp.new_bool_var("") for d in devices} for devices in self._allowed]
        self.starts = [self._moment(task, 0) for task in range(len(problem.tasks))]
        self.ends = [self._moment(task, bounds.fastest_ns[task]) for task in range(len(problem.tasks))]
        self.makespan = self.cp.new_int_var(bounds.lower_ns, horizon_ns, "makespan")
        self.together = self._pairs_together()
        self.fullness: cp_model.IntVar | None = None

        self._one_device_per_item()
        self._one_task_at_a_time()
        self._transfers_arrive_before_tasks_start()
        self._memory_fits()
        if problem.use_every_device:
            self._every_device_is_used()
        self._interchangeable_devices_open_in_order()
        self._work_fits_in_the_makespan()
        self._tasks_leave_time_for_what_follows()
        self._heavy_paths_are_cut()

    def minimise_makespan(self) -> None:
        """Ask for the earliest end."""
        self.cp.minimize(self.makespan)

    def minimise_fullest_device(self) -> None:
        """Ask for the smallest largest memory, each device's counted relative to its capacity.

        Relative, because memory estimates are off by a percentage: the device with the smallest share of its
        memory free is the one that runs out first. Capacity beyond what all items need does not count.
        """
        total_bytes = max(1, sum(item.memory_bytes for item in self._problem.items))
        capacities = [min(device.capacity_bytes, total_bytes) for device in self._problem.devices]
        largest = max(capacities)
        precision = 1 if len(set(capacities)) == 1 else 1000
        self._fullness_weights = [precision * largest // max(1, capacity) for capacity in capacities]
        self.fullness = self.cp.new_int_var(0, precision * largest, "fullness")
        for device, weight in enumerate(self._fullness_weights):
            self.cp.add(sum(weight * term for term in self._memory_terms(device)) <= self.fullness)
        self.cp.minimize(self.fullness)

    def hint(self, start: ScheduledAssignment) -> None:
        """Offer a complete solution to begin from."""
        assignment = canonical(start.assignment, self._groups)
        for devices, chosen in zip(self.on, assignment, strict=True):
            for device, literal in devices.items():
                self.cp.add_hint(literal, device == chosen)
        for index, (task, begin_ns) in enumerate(zip(self._problem.tasks, start.starts_ns, strict=True)):
            self.cp.add_hint(self.starts[index], begin_ns)
            self.cp.add_hint(self.ends[index], begin_ns + task.duration_ns[assignment[task.item]])
        for (a, b), literal in self.together.items():
            self.cp.add_hint(literal, assignment[a] == assignment[b])
        for literal, device, item in self._opened:
            self.cp.add_hint(literal, device in assignment[: item + 1])
        self.cp.add_hint(self.makespan, start.makespan_ns)
        if self.fullness is not None:
            held_bytes = [0] * len(self._devices)
            for item, device in zip(self._problem.items, assignment, strict=True):
                held_bytes[device] += item.memory_bytes
            weighted = (w * held for w, held in zip(self._fullness_weights, held_bytes, strict=True))
            self.cp.add_hint(self.fullness, max(weighted))

    def _moment(self, task: int, offset_ns: int) -> cp_model.IntVar:
        earliest = self._bounds.heads_ns[task] + offset_ns
        latest = self._horizon_ns - self._bounds.tails_ns[task] - self._bounds.fastest_ns[task] + offset_ns
        return self.cp.new_int_var(earliest, latest, "")

    def _pairs_together(self) -> dict[tuple[int, int], cp_model.IntVar]:
        """One boolean per pair of items with a transfer between them: do they share a device?"""
        tasks = self._problem.tasks
        pairs = sorted({self._pair(tasks[a].item, tasks[b].item) for a, b in self._precedences})
        together = {pair: self.cp.new_bool_var("") for pair in pairs if pair[0] != pair[1]}
        for (a, b), literal in together.items():
            for device in self._devices:
                on_a = self.on[a].get(device, self._never)
                on_b = self.on[b].get(device, self._never)
                self.cp.add(on_a == on_b).only_enforce_if(literal)
                self.cp.add_bool_or(~on_a, ~on_b, literal)
        return together

    @staticmethod
    def _pair(a: int, b: int) -> tuple[int, int]:
        return (a, b) if a < b else (b, a)

    def _one_device_per_item(self) -> None:
        for devices in self.on:
            self.cp.add_exactly_one(devices.values())

    def _one_task_at_a_time(self) -> None:
        per_device: dict[int, list[cp_model.IntervalVar]] = {device: [] for device in self._devices}
        for index, task in enumerate(self._problem.tasks):
            start, end, devices = self.starts[index], self.ends[index], self.on[task.item]
            self.cp.add(end == start + sum(task.duration_ns[d] * literal for d, literal in devices.items()))
            for device, literal in devices.items():
                if duration := task.duration_ns[device]:
                    interval = self.cp.new_optional_interval_var(start, duration, end, literal, "")
                    per_device[device].append(interval)
        for intervals in per_device.values():
            self.cp.add_no_overlap(intervals)

    def _transfers_arrive_before_tasks_start(self) -> None:
        """The cheapest link gives every transfer one linear row; dearer links add a row per device pair."""
        for (source, target), size_bytes in self._precedences.items():
            a, b = self._problem.tasks[source].item, self._problem.tasks[target].item
            end, start = self.ends[source], self.starts[target]
            if a == b:
                self.cp.add(start >= end)
                continue
            delays = {
                (d, e): delay_ns(self._problem, d, e, size_bytes) for d in self.on[a] for e in self.on[b] if d != e
            }
            cheapest = min(delays.values(), default=0)
            self.cp.add(start >= end + cheapest - cheapest * self.together[self._pair(a, b)])
            for (d, e), delay in delays.items():
                if delay > cheapest:
                    self.cp.add(start >= end + delay).only_enforce_if(self.on[a][d], self.on[b][e])

    def _memory_terms(self, device: int) -> Iterator[cp_model.LinearExpr]:
        for item, devices in zip(self._problem.items, self.on, strict=True):
            if item.memory_bytes and device in devices:
                yield item.memory_bytes * devices[device]

    def _memory_fits(self) -> None:
        for index, device in enumerate(self._problem.devices):
            self.cp.add(sum(self._memory_terms(index)) <= device.capacity_bytes)

    def _every_device_is_used(self) -> None:
        for device in self._devices:
            self.cp.add_bool_or(devices[device] for devices in self.on if device in devices)

    def _interchangeable_devices_open_in_order(self) -> None:
        """Break symmetry: of interchangeable devices, each gets its first item after the device before it."""
        self._opened: list[tuple[cp_model.IntVar, int, int]] = []
        for group in self._groups:
            for before, after in pairwise(group):
                earlier = self._never
                for item, devices in enumerate(self.on):
                    if after in devices:
                        self.cp.add_implication(devices[after], earlier)
                    opened = self.cp.new_bool_var("")
                    self.cp.add_max_equality(opened, [earlier, devices.get(before, self._never)])
                    self._opened.append((opened, before, item))
                    earlier = opened

    def _work_fits_in_the_makespan(self) -> None:
        """Redundant: a device cannot work longer than the step takes."""
        for device in self._devices:
            work = sum(
                task.duration_ns[device] * self.on[task.item][device]
                for task in self._problem.tasks
                if device in self.on[task.item]
            )
            self.cp.add(work <= self.makespan)

    def _tasks_leave_time_for_what_follows(self) -> None:
        """The makespan is the end of the last task; redundant for tasks that others wait for."""
        for end, tail_ns in zip(self.ends, self._bounds.tails_ns, strict=True):
            self.cp.add(end + tail_ns <= self.makespan)

    def _heavy_paths_are_cut(self) -> None:
        """Redundant: a connected run of items heavier than the largest device is separated somewhere.

        The runs are taken from the longest path, where every cut delays the end.
        """
        largest = max(device.capacity_bytes for device in self._problem.devices)
        path = [self._problem.tasks[task].item for task in self._bounds.longest_path]
        seen: set[tuple[tuple[int, int], ...]] = set()
        for run in _heavy_runs(path, [item.memory_bytes for item in self._problem.items], largest):
            pairs = tuple(sorted({self._pair(a, b) for a, b in pairwise(run) if a != b}))
            if pairs not in seen:
                seen.add(pairs)
                self.cp.add_bool_or(~self.together[pair] for pair in pairs)


def _heavy_runs(path: Sequence[int], memory_bytes: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """From each position, the shortest run of the path whose items together exceed `limit` bytes."""
    for begin in range(len(path)):
        items: set[int] = set()
        held = 0
        for end in range(begin, len(path)):
            if path[end] not in items:
                items.add(path[end])
                held += memory_bytes[path[end]]
            if held > limit:
                yield path[begin : end + 1]
                break
