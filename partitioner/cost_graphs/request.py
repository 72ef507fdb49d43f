"""The request for a plan of a cost graph, so that it can be changed and solved again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from partitioner.cost_graphs.constraints import resolve_node_constraints
from partitioner.cost_graphs.formulate import BuiltProblem, build_problem
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.solver.client import MaxLoadResult, solve
from partitioner.cost_graphs.solver.problem import DeviceKind, LoadDevice, MaxLoadAnswer
from partitioner.errors import UsageError
from partitioner.hardware.topology import memory_limits
from partitioner.ir.devices import DeviceName
from partitioner.ir.requirements import Requirement
from partitioner.spelling import argument


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGraphRequest:
    """A cost graph, its devices, and the options of its placement; see `plan_cost_graph`."""

    graph: CostGraph
    places: tuple[LoadDevice, ...]
    requirements: tuple[Requirement, ...] = ()
    contiguous: bool = False
    time_limit: float = 60.0
    work_limit: float | None = None
    seed: int = 0

    def built(self) -> BuiltProblem:
        """The problem in integers.

        Raises:
            UsageError: Requirements cannot be read.
            InfeasibleError: Requirements contradict each other, or the needs of a node.
        """
        names = [DeviceName.parse(place.name) for place in self.places]
        return build_problem(
            self.graph,
            self.places,
            constraints=resolve_node_constraints(self.graph, self.requirements, names),
            contiguous=self.contiguous,
            time_limit_seconds=self.time_limit,
            work_limit=self.work_limit,
            seed=self.seed,
        )

    def solved(
        self, on_progress: Callable[[float, float, float], None] = lambda _objective, _bound, _seconds: None
    ) -> tuple[BuiltProblem, MaxLoadResult]:
        """The problem and the result of its solver; `on_progress` gets objective, bound and seconds."""
        built = self.built()

        def progress(answer: MaxLoadAnswer, seconds: float) -> None:
            load = math.inf if answer.max_load is None else answer.max_load * built.unit
            on_progress(load, answer.lower_bound * built.unit, seconds)

        return built, solve(built.problem, progress)

    def with_another_accelerator(self) -> CostGraphRequest:
        """The request with a further accelerator, like the last accelerator."""
        last = [place for place in self.places if not place.is_cpu][-1]
        name = DeviceName.parse(last.name)
        kin = [other.index for place in self.places if (other := DeviceName.parse(place.name)).type == name.type]
        more = replace(last, name=replace(name, index=max(kin) + 1).canonical)
        return replace(self, places=(*self.places, more))


def load_devices(
    graph: CostGraph, devices: Sequence[DeviceName], memory_limit: str | None = None
) -> tuple[LoadDevice, ...]:
    """The named devices, else those of the file; GPUs have the given or the file's memory, CPUs have no limit.

    Raises:
        UsageError: There are no devices.
    """
    names = list(devices) or _devices_of_file(graph)
    limits: Mapping[DeviceName, int] = memory_limits(names, memory_limit)
    places = []
    for device in names:
        is_cpu = device.type == "CPU"
        of_file = None if is_cpu or graph.memory_bytes is None else math.floor(graph.memory_bytes)
        kind = DeviceKind.CPU if is_cpu else DeviceKind.ACCELERATOR
        places.append(LoadDevice(name=device.canonical, kind=kind, capacity_bytes=limits.get(device, of_file)))
    return tuple(places)


def _devices_of_file(graph: CostGraph) -> list[DeviceName]:
    counts = {"GPU": graph.accelerators or 0, "CPU": graph.cpus or 0}
    names = [DeviceName(type=kind, index=index) for kind, count in counts.items() for index in range(count)]
    if not names:
        said = "does not say for how many devices it is" if graph.accelerators is None else "is for 0 devices"
        raise UsageError(
            f"which devices? The cost graph {said}", help=f"e.g. {argument('devices', ['GPU:0-3', 'CPU:0'])}"
        )
    return names
