"""Evaluate pipelines: cut a placement of items into stage programs, cost and simulate them, each once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import share_memory
from partitioner.ir.execution import Execution
from partitioner.ir.stage_programs import Gather, StagePrograms
from partitioner.planner.bounds.microbatched import OpRuns, microbatched_bound_seconds
from partitioner.planner.model.assignment import Assignment
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.op_devices import op_devices
from partitioner.planner.pipeline.cut_bounds import CutBounds
from partitioner.planner.pipeline.least_share import least_share
from partitioner.planner.pipeline.near_cut import near_cut
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import OrderedItems, between
from partitioner.planner.pipeline.search_space import (
    NOTHING,
    PipelineCandidate,
    PipelineSearchSpace,
    Recompute,
    Recomputed,
)
from partitioner.planner.pipeline.solve.client import least_steps
from partitioner.planner.pipeline.solve.problem import (
    MOST_PROBLEMS,
    BoundRequest,
    LeastStep,
)
from partitioner.planner.pipeline.split import Cut, StageSplit
from partitioner.planner.pipeline.stage_items import StageItems
from partitioner.planner.pipeline.stage_sequence import StageSequence
from partitioner.planner.simulate.dataflow import Dataflow
from partitioner.planner.simulate.pipelined import simulate_stages
from partitioner.planner.simulate.program_costs import StageCosts
from partitioner.stages.schedules import ScheduleKind, device_orders, max_live, max_waiting

# Few steps take longer than so many times what their devices have to do at the least.
_LIKELY = 1.5


class Shape(NamedTuple):
    """Devices of stages, a number of microbatches and a schedule."""

    devices: tuple[int, ...]
    num_microbatches: int
    schedule: ScheduleKind


class PipelineEvaluator:
    """Simulates pipelines, and keeps the results.

    Args:
        costed: The graph at the full batch size.
        coarsening: Its items.
        search_space: The search space, which gives costs and programs.
        in_order: The same items in forward order, where that is known from another layout.
    """

    def __init__(
        self,
        costed: CostedGraph,
        coarsening: Coarsening,
        search_space: PipelineSearchSpace,
        in_order: StageItems | None = None,
    ) -> None:
        self.costed, self.coarsening, self.search_space = costed, coarsening, search_space
        self._in_order = in_order or StageItems(costed, coarsening)
        self.names = [placed.name for placed in costed.topology.devices]
        self._simulations: dict[tuple[object, ...], PipelineCandidate | None] = {}
        self.refusal: UsageError | None = None
        self.num_cut_ops = 0
        self._share_memory = len(self.names) > 1 and share_memory(self.names)
        self._costs: dict[tuple[int, bool], StageCosts] = {}
        self._items: dict[int, OrderedItems] = {}
        self._programs: dict[tuple[Assignment, Recomputed, bool], StagePrograms | None] = {}
        self._wiring: dict[tuple[Assignment, Recomputed, bool, int], Dataflow] = {}
        self._bounds: dict[int, float] = {}
        self._sequences: dict[tuple[object, ...], StageSequence] = {}
        self._cuts: dict[tuple[object, ...], Cut | None] = {}
        self._slower_cuts: dict[tuple[object, ...], Cut] = {}  # of the same shapes, found in other ways
        self._cut_bounds: dict[tuple[object, ...], tuple[float, float]] = {}  # and what was enough

    def choosing(self, search_space: PipelineSearchSpace) -> PipelineEvaluator:
        """An evaluator for other counts or recompute that has simulated nothing; it shares costs, programs and cuts."""
        other = copy(self)
        other.search_space, other._simulations = search_space, {}
        return other

    @property
    def order(self) -> tuple[int, ...]:
        """The items in the order in which forwards run."""
        return self._in_order.order

    @property
    def adjacent(self) -> list[set[int]]:
        """For each item, the others that it exchanges a tensor with or waits for."""
        return self._in_order.adjacent

    def rows(self, num_microbatches: int) -> int:
        """Rows of the largest microbatch."""
        return math.ceil(self.costed.graph.batch_size / num_microbatches)

    def costs(self, num_microbatches: int, *, alone: bool = False) -> StageCosts:
        """Costs at the size of a microbatch, on a device that works `alone` or beside others, as stages do."""
        key = self.rows(num_microbatches), not alone and self._share_memory
        if key not in self._costs:
            self._costs[key] = StageCosts(self._costed_beside(num_microbatches, alone=alone))
        return self._costs[key]

    def _costed_beside(self, num_microbatches: int, *, alone: bool) -> CostedGraph:
        costed = self._costed_for(self.rows(num_microbatches))
        return costed.contended if not alone and self._share_memory else costed

    def _costed_for(self, rows: int) -> CostedGraph:
        is_whole = rows == self.costed.graph.batch_size
        return self.costed if is_whole else self.search_space.costed_for(rows, self._summed)

    def items(self, num_microbatches: int) -> OrderedItems:
        """Running sums over the items at the size of a microbatch."""
        rows = self.rows(num_microbatches)
        if rows not in self._items:
            costed = self._costed_beside(num_microbatches, alone=False)
            summed = self._summed if rows < self.costed.graph.batch_size else ()
            self._items[rows] = self._in_order.at(costed, self._sum_seconds, summed)
        return self._items[rows]

    @property
    def may_hold(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """`(n + 1, n + 1)` each: whether items i to j may fit on some device, if the batch stays whole, and are
        estimated to."""
        items, limit = self.items(1), max(placed.memory_bytes for placed in self.costed.topology.devices)
        held = between(items.variable_bytes + items.saved_bytes)
        later = between(items.gradient_bytes + items.late_bytes)
        return held <= limit, held + later <= limit

    @cached_property
    def _summed(self) -> tuple[str, ...]:
        """Gradients that are summed over microbatches and replicas."""
        programs = self._any_programs
        return tuple(name for name, how in programs.gathered.items() if how is Gather.SUM) if programs else ()

    @cached_property
    def _sum_seconds(self) -> dict[str, Floats]:
        """Seconds of sums of gradients over replicas, where they depend on the cut: by gradient, by device."""
        sums, programs, tensor = self.search_space.sums, self._any_programs, self.costed.graph.tensor
        if sums is None or programs is None or len(self.names) == 1:
            return {}
        return {name: sums.least_seconds(tensor[name].size_bytes, how) for name, how in programs.gathered.items()}

    @cached_property
    def _certain_sum_seconds(self) -> float:
        """Where a replica is one device: it sums all its gradients behind its last call."""
        sums, programs = self.search_space.sums, self._any_programs
        if sums is None or programs is None or len(self.names) > 1:
            return 0.0
        return sums.seconds(programs, self.costed.graph, 1)

    @property
    def _any_programs(self) -> StagePrograms | None:
        """Programs of some placement; None where the step cannot be cut."""
        known = next((programs for programs in self._programs.values() if programs is not None), None)
        return known or self.programs((min(self.coarsening.allowed[0]),) * len(self.coarsening.items))

    @cached_property
    def _runs(self) -> OpRuns | None:
        programs = self._any_programs
        return OpRuns.of(self.costed.graph, programs) if programs is not None else None

    def cut(
        self,
        devices: tuple[int, ...],
        num_microbatches: int,
        schedule: ScheduleKind,
        *,
        again: bool = False,
        spare_bytes: tuple[int, ...] = (),
    ) -> Cut | None:
        """The cut into stages on these devices with the least estimate; None where constraints allow none.

        With `again`, all stages recompute. Estimates leave `spare_bytes` of each device free; empty for none.
        """
        how = "all" if again else self.search_space.recompute
        key = (devices, num_microbatches, schedule, how, *spare_bytes)
        if key not in self._cuts:
            sequence = self._sequence(devices, num_microbatches, schedule, how)
            likely = _LIKELY * self.work_bound_seconds(devices, num_microbatches, schedule)
            split = StageSplit(sequence=sequence, spare_bytes=spare_bytes)
            cut = split.best(likely)
            if spare_bytes and (roomy := self.cut(devices, num_microbatches, schedule, again=again)):
                # The same ends may do, if more runs again, or ends near them.
                starts = [split.cut(roomy.ends), *filter(None, [cut])]
                cut = min((near_cut(split, start) for start in starts), key=lambda one: one.seconds)
            self._cuts[key] = cut and replace(cut, seconds=cut.seconds + self._certain_sum_seconds)
        return self._cuts[key]

    def known_cut(self, shape: Shape) -> Cut | None:
        """What is known of `cut`, with no more work."""
        return self._cuts.get((*shape, self.search_space.recompute))

    def has_room(self, shape: Shape) -> bool:
        """Whether a cut may be estimated to fit, from what all of them need together."""
        return self._sequence(*shape, self.search_space.recompute).has_room

    def can_keep_all(self, devices: Sequence[int], num_microbatches: int) -> bool:
        """Whether devices have the memory, all together, to keep a microbatch for each of them, as stages in a V do.

        Of each they keep activations, and what gradients of weights are computed from later; none is kept where all
        stages are to run again.
        """
        if self.search_space.recompute == "all":
            return False
        items, topology = self.items(num_microbatches), self.costed.topology
        live = min(num_microbatches, len(devices)) * max(map(self.costed.num_sharing, devices))
        kept = live * (items.saved_bytes[-1] + items.late_bytes[-1])
        needed = items.variable_bytes[-1] + items.summed_bytes[-1] + kept
        return bool(needed <= sum(topology.devices[device].memory_bytes for device in devices))

    def near_cut(self, shape: Shape, cut: Cut) -> Cut:
        """A cut near this one of a shape, or near a slower one of it, with a shorter longest path, if there is one."""
        how = self.search_space.recompute
        key, split = (*shape, how), StageSplit(sequence=self._sequence(*shape, how))
        starts = filter(None, (cut, self._slower_cuts.get(key)))
        near = self._cuts[key] = min((near_cut(split, start) for start in starts), key=lambda one: one.seconds)
        return near

    def cut_bound_seconds(
        self,
        devices: tuple[int, ...],
        num_microbatches: int,
        schedule: ScheduleKind,
        *,
        enough_seconds: float = math.inf,
    ) -> float:
        """Lower bound on the step of all such cuts; infinite where none fits. It need not be larger than enough."""
        how = self.search_space.recompute
        key = (devices, num_microbatches, schedule, how)
        known, enough = self._cut_bounds.get(key, (0.0, 0.0))
        if enough <= known < enough_seconds:
            work = self.work_bound_seconds(devices, num_microbatches, schedule)
            known = max(known, work)
            if work < enough_seconds:
                bounds = CutBounds(sequence=self._sequence(devices, num_microbatches, schedule, how))
                bound = bounds.seconds(_LIKELY * work, enough_seconds) + self._certain_sum_seconds
                known = max(known, bound)
            self._cut_bounds[key] = known, enough_seconds
        return known

    def known_bound_seconds(self, shape: Shape) -> float:
        """What is known of `cut_bound_seconds`, with no more work."""
        known, _ = self._cut_bounds.get((*shape, self.search_space.recompute), (0.0, 0.0))
        return max(known, self.work_bound_seconds(*shape))

    def work_bound_seconds(self, devices: Sequence[int], num_microbatches: int, schedule: ScheduleKind) -> float:
        """A bound that is less than `cut_bound_seconds`, and takes no time."""
        items, num_devices = self.items(num_microbatches), len(set(devices))
        calls = items.least_calls(len(devices)) * self.costed.least_call_seconds
        bound = num_microbatches / num_devices * (float(items.least_pass_seconds[-1]) + calls)
        if items.going_back is not None:  # these stages wait for gradients
            first, last = items.going_back
            waiting = float(items.least_pass_seconds[last + 1] - items.least_pass_seconds[first - 1])
            waiting += calls * items.all_go_back
            bound = max(bound, least_share(schedule, len(devices), num_devices, num_microbatches) * waiting)
        return bound

    def equal_stages_seconds(self, shape: Shape) -> float:
        """About what a step takes, filling and draining included, if all devices had the same work: (M + D - 1)(f + b)
        for D devices and M microbatches."""
        num_devices, count = len(set(shape.devices)), shape.num_microbatches
        return (count + num_devices - 1) / num_devices * float(self.items(count).least_pass_seconds[-1])

    def look_closer(
        self,
        shapes: Iterable[Shape],
        enough_seconds: float,
        seconds: float,
        *,
        ask: Callable[[BoundRequest], Sequence[LeastStep]] = least_steps,
    ) -> None:
        """Raise the bounds of shapes by what stages make each other wait, the least first, and look for better cuts.

        Args:
            shapes: Devices of stages, numbers of microbatches and schedules.
            enough_seconds: Bounds need not be larger.
            seconds: Time for all of them.
            ask: Answers a request; by default a process.
        """
        how = self.search_space.recompute
        known = {shape: self.cut_bound_seconds(*shape) for shape in shapes}
        least = sorted(known, key=known.__getitem__)[:MOST_PROBLEMS]
        sequences = {shape: self._sequence(*shape, how) for shape in least}
        bounds = {shape: CutBounds(sequence=sequence) for shape, sequence in sequences.items()}
        problems = {shape: made for shape, one in bounds.items() if (made := one.problem(known[shape], enough_seconds))}
        if not problems:
            return
        request = BoundRequest(
            problems=tuple(problems.values()),
            enough_seconds=enough_seconds,
            seconds=seconds,
        )
        for shape, step in zip(problems, ask(request), strict=True):
            key, split = (*shape, how), StageSplit(sequence=sequences[shape])
            self._cut_bounds[key] = max(known[shape], step.seconds), enough_seconds
            if step.ends:
                cut, before = split.cut((*step.ends, len(self.order))), self.cut(*shape)
                if before is not None:
                    cut, self._slower_cuts[key] = sorted((cut, before), key=lambda one: one.seconds)
                self._cuts[key] = cut

    def _sequence(
        self, devices: tuple[int, ...], num_microbatches: int, schedule: ScheduleKind, recompute: Recompute
    ) -> StageSequence:
        key = devices, num_microbatches, schedule, recompute
        if key not in self._sequences:
            self._sequences[key] = self._made_sequence(*key)
        return self._sequences[key]

    def _made_sequence(
        self, devices: tuple[int, ...], num_microbatches: int, schedule: ScheduleKind, recompute: Recompute
    ) -> StageSequence:
        training = self.costed.graph.training
        orders = device_orders(schedule, [str(device) for device in devices], num_microbatches, training=training)
        # A single stage runs forward and backward in one program.
        live = dict.fromkeys(range(len(devices)), 1 if len(devices) == 1 and training else 0)
        waiting = dict.fromkeys(range(len(devices)), 0)
        for actions in orders.values() if training and len(devices) > 1 else ():
            live |= max_live(actions)
            waiting |= max_waiting(actions) if schedule.parts_backward else {}
        return StageSequence(
            items=self.items(num_microbatches),
            costed=self._costed_beside(num_microbatches, alone=len(devices) == 1),
            devices=devices,
            num_microbatches=num_microbatches,
            schedule=schedule,
            orders=orders,
            num_live=[*live.values()],
            num_waiting=[*waiting.values()],
            allowed=self.coarsening.allowed,
            recompute=recompute,
        )

    def programs(
        self,
        assignment: Sequence[int],
        recompute: Recomputed = NOTHING,
        schedule: ScheduleKind = ScheduleKind.SEQUENTIAL,
    ) -> StagePrograms | None:
        """The stage programs of a placement; None where the step cannot be cut, and `refusal` says why."""
        key = (tuple(assignment), recompute, schedule.parts_backward)
        if key not in self._programs:
            self.num_cut_ops += len(self.costed.graph.ops)
            placement = self.coarsening.placement(assignment)
            execution = Execution(
                placement=op_devices(self.costed.graph, placement, self.names),
                stage_devices=[self.names[device] for device in dict.fromkeys(assignment)],
                schedule=schedule,
                recompute=recompute.stages,
                rerun=dict.fromkeys(recompute.selective, self._in_order.places.cheap) if recompute.selective else {},
            )
            try:
                programs = self.search_space.programs(execution)
            except UsageError as error:
                programs, self.refusal = None, error
            self._programs[key] = programs if programs is not None and programs.stages else None
        return self._programs[key]

    def __call__(
        self,
        assignment: Sequence[int],
        num_microbatches: int,
        schedule: ScheduleKind,
        recompute: Recomputed = NOTHING,
    ) -> PipelineCandidate | None:
        """The simulated pipeline; None where the step cannot run as this pipeline.

        An item on a device without a stage (it holds only constants) moves to the device of the last stage.
        """
        key = (tuple(assignment), num_microbatches, schedule, recompute)
        if key not in self._simulations:
            self._simulations[key] = self._simulated(tuple(assignment), num_microbatches, schedule, recompute)
        return self._simulations[key]

    def candidates(self) -> list[PipelineCandidate]:
        """All simulated pipelines."""
        return [candidate for candidate in self._simulations.values() if candidate is not None]

    def _simulated(
        self, assignment: Assignment, num_microbatches: int, schedule: ScheduleKind, recompute: Recomputed
    ) -> PipelineCandidate | None:
        programs = self.programs(assignment, recompute, schedule)
        if programs is None:
            return None
        holding = {self.names.index(name) for name in programs.stages}
        if set(assignment) - holding:
            last = self.names.index(programs.stages[-1])
            moved = tuple(device if device in holding else last for device in assignment)
            return self(moved, num_microbatches, schedule, recompute)
        costs = self.costs(num_microbatches, alone=len(holding) == 1)
        wiring_key = (assignment, recompute, schedule.parts_backward, self.rows(num_microbatches))
        if wiring_key not in self._wiring:
            self._wiring[wiring_key] = Dataflow(programs, costs)
        try:
            staged = simulate_stages(
                programs,
                costs.costed,
                num_microbatches=num_microbatches,
                schedule=schedule,
                wiring=self._wiring[wiring_key],
            )
        except UsageError:
            return None
        alone = staged
        if self.search_space.sums:
            staged = self.search_space.sums.added_to(staged, programs, costs.costed.graph, num_microbatches)
        relocated = {name: self.names.index(device) for name, device in programs.relocated.items()}
        devices = self.costed.topology.devices
        return PipelineCandidate(
            assignment=assignment,
            placement=self.coarsening.placement(assignment) | relocated,
            num_microbatches=num_microbatches,
            schedule=schedule,
            programs=programs,
            staged=staged,
            over_bytes=tuple(max(0, staged.peak[d.name].total_bytes - d.memory_bytes) for d in devices),
            sum_bytes=tuple(staged.peak[d.name].total_bytes - alone.peak[d.name].total_bytes for d in devices),
        )

    def bound_seconds(self, num_microbatches: int) -> float:
        """Lower bound on a step in so many microbatches; 0 where it cannot be cut."""
        if self._runs is None:
            return 0.0
        if num_microbatches not in self._bounds:
            costed = self._costed_for(self.rows(num_microbatches))
            self._bounds[num_microbatches] = microbatched_bound_seconds(costed, self._runs, num_microbatches)
        return self._bounds[num_microbatches]
