"""Plan a layout: a number of replicas on groups of devices. One replica is planned, the others do the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from cost_models.topology import Topology
from partitioner.constraints.match import resolve_constraints
from partitioner.deadline import Deadline
from partitioner.ir.by_identity import ByIdentity
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName, share_memory
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.plan import Baseline, Objective, Strategy
from partitioner.ir.requirements import Requirement, RequirementKind, ResolvedConstraint
from partitioner.ir.stage_programs import Gather, StagePrograms
from partitioner.planner.bounds.step_time import path_seconds, work_bound_seconds
from partitioner.planner.layouts.groups import ReplicaGroups, crossing_uplinks, data_parallel_degrees, has_shared
from partitioner.planner.layouts.replicas import single_device_baselines, within_replica
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.layouts.search import search
from partitioner.planner.layouts.search_progress import SILENT, SearchProgress
from partitioner.planner.layouts.step_items import StepItems
from partitioner.planner.pipeline.evaluator import PipelineEvaluator
from partitioner.planner.pipeline.search import PipelineSearch
from partitioner.planner.pipeline.search_space import PipelineSearchSpace
from partitioner.planner.simulate.all_reduces import ReplicaSums
from partitioner.stages.schedules import ScheduleKind


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """A layout: replicas on groups of devices, and the search result for one replica.

    Attributes:
        groups: The devices of each replica.
        costed: The step of one replica on its devices.
        result: The search result for one replica; its figures include what replicas exchange.
    """

    groups: ReplicaGroups
    costed: CostedGraph
    result: SearchResult

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.result.schedule.step_seconds

    @property
    def largest_peak_bytes(self) -> int:
        """Peak of the fullest device."""
        return max(use.total_bytes for use in self.result.schedule.peak.values())

    @property
    def num_devices(self) -> int:
        """Devices that run something."""
        used = set(self.result.placement.values())
        return len({group[place] for group in self.groups for place in used})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds on the step of replicas, in seconds: of any placement, and of the family."""

    lower: float
    of_family: float


class LayoutPlanner:
    """Plans layouts of one step; costs that several layouts need are computed once.

    Args:
        machines: All devices.
        batch_size: Rows of a batch.
        costed: The step for a number of rows, with the costs of its ops on some of the devices, and of adding some of
            its tensors to running totals; called once for each.
        programs: The stage programs of an execution.
        counts: Numbers of microbatches of a replica to choose from.
        schedules: Schedules to choose from.
        recompute: As in `PipelineSearchSpace`.
        objective: Whether the step time or the largest peak is minimised.
        requirements: Allowed devices and colocations of ops; pins name devices of the first replica.
        time_limit_seconds: For all that is planned with it, from `started` on.
        is_limited: Whether the user has set this limit; else a search goes on until it has found a plan.
        seed: For the solver.
        progress: Told of better placements.
    """

    def __init__(
        self,
        *,
        machines: Topology,
        batch_size: int,
        costed: Callable[[int, Sequence[int], tuple[str, ...]], CostedGraph],
        programs: Callable[[Execution], StagePrograms],
        counts: tuple[int, ...],
        schedules: tuple[ScheduleKind, ...],
        recompute: Literal["auto", "none", "all"],
        objective: Objective,
        requirements: Sequence[Requirement],
        time_limit_seconds: float,
        is_limited: bool,
        seed: int,
        progress: SearchProgress = SILENT,
    ) -> None:
        self.machines, self.counts, self.objective = machines, counts, objective
        self.batch_size, self.requirements = batch_size, requirements
        self._cost, self._programs, self._schedules = costed, programs, schedules
        self._recompute: Literal["auto", "none", "all"] = recompute
        self.time_limit_seconds, self._seed, self._progress = time_limit_seconds, seed, progress
        self._is_limited, self._compares = is_limited, True
        self.deadline = Deadline.after(time_limit_seconds, is_soft=not is_limited)
        self._like = tuple(range(len(machines.devices)))
        self._costed: dict[tuple[int, tuple[int, ...], tuple[str, ...]], CostedGraph] = {}
        self._of_replica: dict[tuple[int, ReplicaGroups, tuple[str, ...]], CostedGraph] = {}
        self._known = ByIdentity()
        self._estimated: dict[ReplicaGroups, PipelineEvaluator] = {}

    def __call__(
        self,
        strategy: Strategy,
        groups: ReplicaGroups,
        *,
        explains: bool = True,
        least_devices: int = 1,
        known_seconds: float = math.inf,
    ) -> ParallelLayout:
        """The best layout on these groups; the first option as for `search`, others as in `PipelineSearchSpace`.

        Raises:
            InfeasibleError: Nothing fits, or requirements contradict each other or the strategy.
            TimeLimitError: No layout that fits was found in time.
            UsageError: The step, the requirements or the strategy do not go with the devices.
        """
        costed, constraints = self.costed(groups), self.constraints(groups, self.requirements)
        choices = self._search_space(groups, least_devices=least_devices, known_seconds=known_seconds)
        estimated = self._estimated.pop(groups, None)
        result = search(
            costed,
            strategy=within_replica(strategy, groups),
            objective=self.objective,
            constraints=constraints,
            time_limit_seconds=self.time_limit_seconds,
            deadline=self.deadline,
            seed=self._seed,
            search_space=choices,
            items=self._items(costed, constraints),
            evaluator=estimated.choosing(choices) if estimated else None,
            explains=explains,
            compares=self._compares,
            progress=self._progress,
        )
        return ParallelLayout(groups=groups, costed=costed, result=result)

    def estimated_seconds(self, strategy: Strategy, groups: ReplicaGroups, known_seconds: float) -> float:
        """The least estimate of a pipeline of these replicas; infinite where each takes longer than is known, or is
        estimated not to fit.

        Nothing is simulated.

        Raises:
            InfeasibleError: Requirements contradict each other.
            UsageError: The requirements do not go with the devices.
        """
        return self._estimates(strategy, groups, known_seconds).estimated_seconds

    def is_estimated_to_fit(self, strategy: Strategy, groups: ReplicaGroups) -> bool:
        """Whether a pipeline of these replicas is estimated to fit; raises what `estimated_seconds` raises."""
        return self._estimates(strategy, groups, math.inf).may_fit

    def bounds(self, strategy: Strategy, groups: ReplicaGroups, enough_seconds: float) -> Bounds:
        """Bounds of what was not planned; they need not be larger than enough. Raises what `estimated_seconds` does."""
        in_stages = self._estimates(strategy, groups, enough_seconds).least_bound_seconds
        return Bounds(lower=self.bound_seconds(groups), of_family=min(in_stages, self.path_seconds(groups)))

    def _estimates(self, strategy: Strategy, groups: ReplicaGroups, known_seconds: float) -> PipelineSearch:
        costed = self.costed(groups)
        choices = self._search_space(groups, known_seconds=known_seconds)
        if groups not in self._estimated:
            items = self._items(costed, self.constraints(groups, self.requirements))
            self._estimated[groups] = PipelineEvaluator(costed, items.fine, choices, items.in_order)
        return PipelineSearch(
            evaluator=self._estimated[groups].choosing(choices),
            strategy=within_replica(strategy, groups),
            objective=self.objective,
            unpipelined_seconds=math.inf,
            one_device=True,
            deadline=self.deadline,
        )

    def _search_space(
        self, groups: ReplicaGroups, *, least_devices: int = 1, known_seconds: float = math.inf
    ) -> PipelineSearchSpace:
        count = len(groups)
        counts = tuple(number for number in self.counts if number * count <= self.batch_size) or self.counts[:1]
        return PipelineSearchSpace(
            counts=counts,
            schedules=self._schedules,
            recompute=self._recompute,
            costed_for=lambda rows, sums: self._sized(rows, groups, sums),
            programs=self._programs,
            unpipelined=count == 1,
            least_devices=least_devices,
            known_seconds=known_seconds,
            sums=ReplicaSums(self.machines, groups) if count > 1 else None,
        )

    def with_baselines(self, layout: ParallelLayout) -> ParallelLayout:
        """The layout; if it has replicas, with the whole batch on one device of each kind, to compare it with."""
        if len(layout.groups) == 1:
            return layout
        return replace(layout, result=replace(layout.result, baselines=self._single_device_baselines(layout.groups[0])))

    @property
    def names_devices(self) -> bool:
        """Whether requirements name devices."""
        return any(requirement.kind is not RequirementKind.COLOCATE for requirement in self.requirements)

    def with_memory(self, sizes_bytes: Sequence[int]) -> LayoutPlanner:
        """A planner for the same devices with other memory limits."""
        devices = zip(self.machines.devices, sizes_bytes, strict=True)
        return self._on(
            replace(self.machines, devices=tuple(replace(placed, memory_bytes=size) for placed, size in devices))
        )

    def unlimited(self) -> LayoutPlanner:
        """A planner for devices of the same kinds with unlimited memory."""
        return self.with_memory([2**62] * len(self.machines.devices))

    def with_another_device(self, like: int) -> LayoutPlanner:
        """A planner with one more device, of the kind of device `like`."""
        names = [DeviceName.parse(placed.name) for placed in self.machines.devices]
        kin = [name.index for name in names if replace(name, index=0) == replace(names[like], index=0)]
        name = replace(names[like], index=max(kin) + 1)
        other = self._on(self.machines.with_another(like, name.canonical))
        other._like = (*self._like, self._like[like])
        return other

    def with_faster_links(self, factor: float) -> LayoutPlanner:
        """A planner for links with their bandwidth multiplied by `factor`."""
        return self._on(self.machines.faster(factor))

    def with_requirements(self, requirements: Sequence[Requirement]) -> LayoutPlanner:
        """A planner for other requirements."""
        other = copy(self)
        other.requirements, other._estimated = requirements, {}
        return other

    def with_objective(self, objective: Objective) -> LayoutPlanner:
        """A planner for another objective."""
        other = copy(self)
        other.objective = objective
        return other

    def asked_whether_it_fits(self, seconds: float) -> LayoutPlanner:
        """A planner that has at most so many seconds, once it is started, and lists no baselines that cannot fit."""
        other = copy(self)
        other._compares = False
        other.time_limit_seconds, other._is_limited = min(seconds, self.time_limit_seconds), True
        return other

    def started(self, seconds: float | None = None) -> LayoutPlanner:
        """A planner whose time begins now, and ends with its limit or in so many seconds."""
        other = copy(self)
        limit = self.time_limit_seconds if seconds is None else seconds
        other.deadline = Deadline.after(limit, is_soft=not self._is_limited)
        return other

    def with_share(self, share: float) -> LayoutPlanner:
        """A planner that has this share of the time that is left."""
        other = copy(self)
        other.deadline = self.deadline.at_share(share)
        return other

    def _on(self, machines: Topology) -> LayoutPlanner:
        other = copy(self)
        other.machines, other._costed, other._of_replica, other._known = machines, {}, {}, ByIdentity()
        other._estimated = {}
        other._progress = SILENT  # what is found there is no plan for the machines that were asked about
        return other

    def bound_seconds(self, groups: ReplicaGroups) -> float:
        """Lower bound on the step of these replicas, without the sums of gradients."""
        return self._known(work_bound_seconds, self.costed(groups))

    def path_seconds(self, groups: ReplicaGroups) -> float:
        """Lower bound on the step of these replicas as one graph, without the sums of gradients."""
        return self._known(path_seconds, self.costed(groups))

    def promised_seconds(self, groups: ReplicaGroups) -> float:
        """About what these replicas take, with the sums, in as many microbatches as they have devices each.

        The first microbatch and the last one leave devices idle for what a microbatch takes from end to end.
        """
        costed = self.costed(groups)
        path = self.path_seconds(groups)
        filling = max(0.0, path - self.bound_seconds(groups)) / min(costed.graph.batch_size, len(groups[0]))
        return self.bound_seconds(groups) + filling + self.sum_seconds(groups)

    def has_room_for_variables(self, groups: ReplicaGroups) -> bool:
        """Whether the devices of a replica could hold its variables, if nothing else."""
        return self.variable_bytes <= sum(self.machines.devices[index].memory_bytes for index in groups[0])

    @property
    def variable_bytes(self) -> int:
        """Of all variables that the step uses."""
        graph = self._costed_for(self.batch_size, (0,)).graph
        used = {name for op in graph.ops for name in op.variables}
        return sum(variable.size_bytes for variable in graph.variables if variable.name in used)

    def sum_seconds(self, groups: ReplicaGroups) -> float:
        """What the sums of these replicas take, if devices share the parameters evenly."""
        variables = self.costed(groups).graph.variables
        size = sum(variable.size_bytes for variable in variables if variable.kind is VariableKind.PARAMETER)
        return float(ReplicaSums(self.machines, groups).least_seconds(size, Gather.SUM).mean()) / len(groups[0])

    def costed(self, groups: ReplicaGroups) -> CostedGraph:
        """The step of one replica on the devices of the first."""
        return self._sized(math.ceil(self.batch_size / len(groups)), groups)

    def _items(self, costed: CostedGraph, constraints: Sequence[ResolvedConstraint]) -> StepItems:
        """The items of a layout: those of the whole batch on all devices, unless constraints or kernels differ."""
        whole = self._costed_for(self.batch_size, tuple(range(len(self.machines.devices))))
        if constraints or (whole.fusion is None) != (costed.fusion is None):
            return StepItems.of(costed, constraints)
        return self._known(StepItems.of, whole).anywhere(len(costed.topology.devices))

    def _single_device_baselines(self, devices: Sequence[int]) -> tuple[Baseline, ...]:
        """The whole batch on the first of each kind of these devices."""
        kinds: dict[object, int] = {}
        for index in devices:
            placed = self.machines.devices[index]
            kinds.setdefault((placed.device.name, placed.memory_bytes), index)
        return single_device_baselines(self._costed_for(self.batch_size, tuple(kinds.values())))

    def _sized(self, rows: int, groups: ReplicaGroups, sums: tuple[str, ...] = ()) -> CostedGraph:
        """The step for a number of rows on the devices of the first replica, while their peers do the same."""
        key = rows, groups, sums
        if key not in self._of_replica:
            costed = self._costed_for(rows, groups[0], sums)
            if len(groups) > 1 and self.machines.uplinks:
                shared = costed.topology.with_uplinks_shared(crossing_uplinks(groups, self.machines))
                costed = replace(costed, topology=shared)
            are_crowded = share_memory([self.machines.devices[index].name for group in groups for index in group])
            costed = costed.contended if len(groups) > 1 and are_crowded else costed
            if has_shared(groups):
                costed = replace(
                    costed, sharing=tuple(len(groups) // degree for degree in data_parallel_degrees(groups))
                )
            self._of_replica[key] = costed
        return self._of_replica[key]

    def constraints(self, groups: ReplicaGroups, requirements: Sequence[Requirement]) -> tuple[ResolvedConstraint, ...]:
        """The requirements, resolved to constraints on the step of one replica.

        Raises:
            UsageError: They do not go with the devices.
        """
        names = [DeviceName.parse(placed.name) for placed in self.machines.devices]
        peers = [[names[index] for index in of_place] for of_place in zip(*groups, strict=True)]
        return resolve_constraints(self.costed(groups).graph, requirements, peers)

    def _costed_for(self, rows: int, first: Sequence[int], sums: tuple[str, ...] = ()) -> CostedGraph:
        key = rows, tuple(first), sums
        if key not in self._costed:
            machines = self.machines if len(first) == len(self.machines.devices) else self.machines.subset(first)
            # A device added for a what-if question has the costs of the device that it is like.
            own = list(dict.fromkeys(self._like[device] for device in first))
            costed = self._cost(rows, own, sums)
            origins = [own.index(self._like[device]) for device in first]
            measured = {place: costed.measured[i] for place, i in enumerate(origins) if i in costed.measured}
            crowded = {place: costed.crowded[i] for place, i in enumerate(origins) if i in costed.crowded}
            self._costed[key] = replace(costed, topology=machines, measured=measured, crowded=crowded)
        return self._costed[key]
