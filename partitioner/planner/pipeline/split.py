"""Cut items in forward order into stages: exact dynamic programs over cut positions, and the bound that they prove.

The cut of an estimate, to be simulated: what transfers and memory are taken to need counts. The cut of the bound is not
used; what counts there is what no pipeline of such stages can avoid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.planner.pipeline.calls import Calls
from partitioner.planner.pipeline.least_cut import end_ranges, least_cut
from partitioner.planner.pipeline.least_share import least_interleaved_share
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import OrderedItems, between
from partitioner.planner.pipeline.search_space import Recompute
from partitioner.planner.pipeline.solve.problem import CutProblem
from partitioner.planner.pipeline.stage_end import StageSeconds
from partitioner.planner.simulate.program_costs import CALL_SECONDS
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind

# A byte over a limit counts as so many seconds, more than any step takes: first what fits, then the fastest.
_SECONDS_PER_BYTE_OVER = 1e3
# Memory is taken to be less than this many times its estimate.
_TIMES_OF_ESTIMATE = 2
# Which of the first and of the last stages have no backward is told apart where few items need no gradient.
_MOST_WITHOUT_BACKWARD = 3
# Cuts into interleaved stages, each given what the last one has in the other stages of the devices.
_TRIES_OF_INTERLEAVED = 6


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A cut.

    Attributes:
        assignment: Device by item.
        recompute: Stages that recompute, so as to fit.
        seconds: The estimated step; with bytes over a limit, far more.
    """

    assignment: tuple[int, ...]
    recompute: frozenset[int]
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether it is estimated to fit."""
        return self.seconds < _SECONDS_PER_BYTE_OVER


@dataclass(frozen=True, kw_only=True)
class _Hops:
    """Seconds of a microbatch over each boundary, if stages are cut there: of activations, and of gradients."""

    there: Floats
    back: Floats


@dataclass(frozen=True, kw_only=True)
class StageSplit:
    """A sequence of items to cut, and the devices of the stages.

    Attributes:
        items: The items in order.
        costed: The graph at the same batch size; its topology has the limits.
        devices: Device of each stage, by index; a device may occur several times and shares its limit evenly.
        num_microbatches: Parts of the batch.
        schedule: Order of the work.
        allowed: Devices that each item may take.
        orders: The actions of each device, in order.
        num_live: For each stage, the microbatches whose activations it holds at a time.
        num_waiting: And those whose gradients of weights wait meanwhile.
        recompute: Whether stages keep only their inputs: `none`, `all`, or as many as it takes to fit.
    """

    items: OrderedItems
    costed: CostedGraph
    devices: Sequence[int]
    num_microbatches: int
    schedule: ScheduleKind
    allowed: Sequence[Collection[int]]
    orders: Mapping[str, Sequence[Action]]
    num_live: Sequence[int]
    num_waiting: Sequence[int]
    recompute: Recompute = "none"

    def best(self) -> Cut | None:
        """The cut with the least estimate; None where constraints allow no stages in this order.

        Where no stages fit, the one that exceeds a limit by the fewest bytes.
        """
        best = min(dict.fromkeys(self._ends()), key=lambda ends: self._cut(ends).seconds, default=None)
        return None if best is None else self.cut(best)

    def cut(self, ends: Sequence[int]) -> Cut:
        """The cut whose stages end there."""
        cut = self._cut(ends)
        if self._num_stages < 2 or self._crossed is None or not cut.fits:
            return cut
        return replace(cut, seconds=max(cut.seconds, self._step_seconds(ends, self._crossed)))

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """Where stages end in the cuts that are estimated."""
        others = self._even_shares()
        for _ in range(_TRIES_OF_INTERLEAVED if self._is_interleaved else 1):
            tables = [ends + self._meanwhile(one) * others[one] for one, (ends, _) in enumerate(self._estimates)]
            ends, _ = least_cut(tables, self._last_sums)
            if ends is None:
                return
            yield tuple(ends)
            others = self._seconds_of_others([*pairwise([0, *ends])])

    def _cut(self, ends: Sequence[int]) -> Cut:
        """The same by the seconds of each device alone."""
        stages = [*pairwise([0, *ends])]
        others = self._seconds_of_others(stages)
        assignment = [0] * len(self.items.order)
        seconds, again = [], []
        for stage, (start, end) in enumerate(stages):
            estimate, chosen = self._estimates[stage]
            seconds.append(float(estimate[start, end]) + self._meanwhile(stage) * others[stage])
            if chosen[start, end]:
                again.append(stage)
            for item in self.items.order[start:end]:
                assignment[item] = self.devices[stage]
        step = max(seconds) + float(self._last_sums[ends[0]])
        return Cut(assignment=tuple(assignment), recompute=frozenset(again), seconds=step)

    def _step_seconds(self, ends: Sequence[int], crossed: tuple[int, int]) -> float:
        """The longest path through the calls of a cut, and updates."""
        items, stages = self.items, [*pairwise([0, *ends])]
        again = np.array([self._estimates[stage][1][places] for stage, places in enumerate(stages)])

        def work(sums: Floats) -> Floats:
            return np.array(
                [sums[d][end] - sums[d][start] for d, (start, end) in zip(self.devices, stages, strict=True)]
            )

        weights = work(items.weights_seconds) if self._parts_backward else np.zeros(len(stages))
        first, last = (sum(end < limit for end in ends[:-1]) for limit in (crossed[0], crossed[1] + 1))
        calls = self._calls(range(first, last + 1) if self._trains else range(0), crossed)
        return calls.step_seconds(
            calls.seconds_of(
                work(items.forward_seconds),
                work(items.backward_seconds) + np.where(again, work(items.again_seconds), 0.0),
                np.where(again, 0.0, weights),
                CALL_SECONDS,
            ),
            work(items.once_seconds),
            work(items.sum_seconds),
            work(items.update_seconds),
        )

    def _calls(self, going_back: range, crossed: tuple[int, int]) -> Calls:
        there, back = self._least_hop_seconds(crossed)
        return Calls(self.orders, self.devices, going_back, there_seconds=there, back_seconds=back)

    def bound_seconds(self) -> float:
        """Lower bound on the step of all cuts into these stages, each of which waits for the stage before it.

        Infinite where there is no cut whose variables and activations fit.
        """
        _, seconds = least_cut(self._bounds(), self._last_sums)
        if self._is_interleaved:
            share = least_interleaved_share(len(set(self.devices)), self.num_microbatches)
            seconds = max(seconds, share * float(self.items.pass_seconds.min(axis=0)[-1]))
        return seconds + self.least_update_seconds

    def problem(self, bound_seconds: float, enough_seconds: float) -> CutProblem | None:
        """What this bound is to be looked at closer for; None where stages may not wait for others.

        Args:
            bound_seconds: The bound.
            enough_seconds: The largest step that matters.
        """
        items, crossed = self.items, self._crossed
        if crossed is None or self._num_stages < 2:
            return None
        there, back = self._least_hop_seconds(crossed)
        backward_seconds = items.backward_seconds + (items.again_seconds if self.recompute == "all" else 0.0)
        backward = _least(backward_seconds)
        leaves = self._parts_backward and self.recompute != "all"
        later = items.weights_seconds if leaves else np.zeros_like(backward_seconds)
        ranges = end_ranges(self._bounds(), enough_seconds - self.least_update_seconds)
        return CutProblem(
            forward=_least(items.forward_seconds),
            backward=backward,
            num_leaving=(0, *np.cumsum(np.diff(later).min(axis=0) > 0).tolist()),
            weights=tuple((np.array(backward) - _least(backward_seconds - later)).tolist()),
            once=_least(items.once_seconds),
            summing=_least(items.sum_seconds),
            updating=_least(items.update_seconds),
            call_seconds=CALL_SECONDS,
            there_seconds=there,
            back_seconds=back,
            crossed=crossed,
            ranges=ranges,
            keeps=tuple(self._keeps(ranges)),
            devices=tuple(self.devices),
            num_microbatches=self.num_microbatches,
            schedule=self.schedule,
            training=self._trains,
            bound_seconds=bound_seconds,
        )

    def _keeps(self, ranges: Sequence[tuple[int, int]]) -> Iterator[bool]:
        """Which stages do not recompute, wherever in their ranges they start and end: they have far more memory."""
        most = len(self.items.order)
        for stage, ((start, _), (_, end)) in enumerate(pairwise([(0, 0), *ranges, (most, most)])):
            needed = float(self._kept_bytes(stage)[min(start, end), end])
            yield self.recompute == "none" or _TIMES_OF_ESTIMATE * needed <= self._limit(stage)

    def _least_hop_seconds(self, crossed: tuple[int, int]) -> tuple[float, float]:
        hops = self._least_hops
        return float(hops.there[1:-1].min()), float(hops.back[crossed[0] : crossed[1] + 1].min())

    @cached_property
    def _crossed(self) -> tuple[int, int] | None:
        """The first and the last position that gradients cross, in inference all; None where stages may not wait for
        their neighbours."""
        items, most = self.items, len(self.items.order)
        crossed = 1 + np.flatnonzero(items.backward_bytes[1:-1])
        if not (items.forward_bytes[1:-1] > 0).all() or bool(len(crossed)) != self._trains:
            return None
        if not self._trains:
            return 1, most - 1
        first, last = int(crossed[0]), int(crossed[-1])
        is_whole = len(crossed) == last + 1 - first
        return (first, last) if is_whole and max(first - 1, most - 1 - last) <= _MOST_WITHOUT_BACKWARD else None

    @property
    def least_update_seconds(self) -> float:
        """Seconds of updates on the fullest device, at the least."""
        updates = self.items.update_seconds.min(axis=0)
        return max(float(np.diff(updates).max(initial=0.0)), float(updates[-1]) / len(set(self.devices)))

    @property
    def _num_stages(self) -> int:
        return len(self.devices)

    @property
    def _is_interleaved(self) -> bool:
        """Whether each device has two stages."""
        return self._num_stages == 2 * len(set(self.devices))

    def _even_shares(self) -> list[float]:
        """For each stage, the seconds of a microbatch in the other stage of its device, if all are alike."""
        whole = [self.items.pass_seconds[device][-1] for device in self.devices]
        return [float(seconds) / self._num_stages if self._is_interleaved else 0.0 for seconds in whole]

    def _seconds_of_others(self, stages: Sequence[tuple[int, int]]) -> list[float]:
        """The same for a cut."""
        own = [self._own_seconds(stage, *ends) for stage, ends in enumerate(stages)]
        of_device = dict.fromkeys(self.devices, 0.0)
        for device, seconds in zip(self.devices, own, strict=True):
            of_device[device] += seconds
        return [of_device[device] - seconds for device, seconds in zip(self.devices, own, strict=True)]

    def _own_seconds(self, stage: int, start: int, end: int) -> float:
        """Seconds of a microbatch in a stage."""
        device, recomputes = self.devices[stage], self._estimates[stage][1][start, end]
        sums = self.items.pass_seconds[device] + (self.items.again_seconds[device] if recomputes else 0.0)
        return float(sums[end] - sums[start])

    @property
    def _last_sums(self) -> Floats:
        """Seconds of the sums of the first stage, by its end: its last backward is that of the step."""
        return self.items.sum_seconds[self.devices[0]]

    # -- seconds of stages, for all pairs of boundaries ------------------------------------------------------------

    def _stage_seconds(self, stage: int, at_start: _Hops, at_end: _Hops) -> StageSeconds:
        """Seconds of a microbatch; hops are what it takes over each boundary, if the stage starts or ends there."""
        items, device, last = self.items, self.devices[stage], self._num_stages - 1
        calls = 2 * CALL_SECONDS if self._trains and last else CALL_SECONDS
        # A stage whose results need no gradient waits for none.
        goes_back = items.backward_bytes > 0
        later = items.weights_seconds if self._parts_backward else np.zeros_like(items.weights_seconds)
        there, back = items.forward_seconds.min(axis=0), (items.backward_seconds - later).min(axis=0)
        both = (items.pass_seconds - later).min(axis=0)
        third_call = self._third_call(stage)
        arriving = there + _passing(at_start.there + CALL_SECONDS, stage)
        returning = back + _passing(at_start.back + np.where(goes_back, CALL_SECONDS, 0.0), stage)
        passes = np.where(goes_back, 2, 1) * CALL_SECONDS
        behind = both[-1] - both + _passing(at_end.there + at_end.back + passes, last - stage)
        if self._trains:
            behind = np.where(goes_back, behind, 0.0)
        return StageSeconds(
            forward=items.between("forward_seconds", device) + CALL_SECONDS,
            backward=items.between("backward_seconds", device) + calls - CALL_SECONDS + third_call,
            weights=self._later(stage) + third_call,
            arriving=arriving[:, None],
            returning=returning[:, None],
            behind=behind[None, :],
            # Those of the first stage come on top of all stages (`_last_sums`), and this stage has summed meanwhile.
            summing=(items.between("sum_seconds", device) - self._last_sums[:, None]) * (stage > 0),
        )

    def _recomputing(self, stage: int, seconds: StageSeconds) -> StageSeconds:
        """The same where the stage runs its forward again in each backward: one call, with the work of both."""
        again = self.items.between("again_seconds", self.devices[stage])
        backward = seconds.backward - self._third_call(stage) + again
        return replace(seconds, backward=backward, weights=np.zeros_like(seconds.weights))

    @property
    def _parts_backward(self) -> bool:
        """Whether the schedule leaves gradients of weights for later."""
        return self.schedule.parts_backward

    def _later(self, stage: int) -> Floats:
        """Seconds of a backward that the schedule leaves for later."""
        seconds = self.items.between("weights_seconds", self.devices[stage])
        return seconds if self._parts_backward else np.zeros_like(seconds)

    def _third_call(self, stage: int) -> Floats:
        """Of what is left for later, where there is something, and a stage before that does not wait for it."""
        return np.where((self._later(stage) > 0) & (self.items.backward_bytes > 0)[:, None], CALL_SECONDS, 0.0)

    def _end(self, stage: int, seconds: StageSeconds) -> Floats:
        kind = self.schedule if self._trains else ScheduleKind.GPIPE
        return seconds.end(kind, self.num_microbatches, max(1, self.num_live[stage]), num_late=self._num_late(stage))

    def _num_late(self, stage: int) -> int:
        """Microbatches whose gradients of weights come behind the last backward of a stage."""
        kinds = [action.kind for action in self.orders[str(self.devices[stage])] if action.stage == stage]
        behind = takewhile(lambda kind: kind is not ActionKind.BACKWARD, reversed(kinds))
        return sum(kind is ActionKind.WEIGHTS for kind in behind)

    @cached_property
    def _trains(self) -> bool:
        return self.costed.graph.training

    @cached_property
    def _possible(self) -> Floats:
        """0 for each stage of at least one item, else infinite."""
        count = len(self.items.order) + 1
        return np.where(np.tri(count, dtype=bool), np.inf, 0.0)

    def _allowed(self, stage: int) -> Floats:
        """0 where all items may be on the stage's device, else infinite."""
        wrong = [self.devices[stage] not in self.allowed[item] for item in self.items.order]
        counts = np.concatenate([[0], np.cumsum(wrong)])
        return np.where(between(counts) > 0, np.inf, self._possible)

    def _bounds(self) -> list[Floats]:
        return [self._bound(stage) for stage in range(self._num_stages)]

    def _bound(self, stage: int) -> Floats:
        seconds = self._least_seconds(stage)
        possible, keeps = self._memory(stage)
        keeping, recomputing = self._end(stage, seconds), self._end(stage, self._recomputing(stage, seconds))
        return possible + np.where(keeps, keeping, recomputing)

    def _least_seconds(self, stage: int) -> StageSeconds:
        seconds = self._stage_seconds(stage, self._least_hops, self._least_hops)
        once = self.items.between("once_seconds", self.devices[stage])
        return replace(seconds, arriving=np.maximum(seconds.arriving, once))

    def _memory(self, stage: int) -> tuple[Floats, NDArray[np.bool_]]:
        """0 where the stage may be, else infinite; and whether it keeps its activations."""
        items, limit = self.items, self.costed.topology.devices[self.devices[stage]].memory_bytes
        variables, gradients = items.between("variable_bytes"), items.between("gradient_bytes")
        keeps = (variables + self._saved(stage) <= limit) & (self.recompute != "all")
        fits = (variables + gradients <= limit) & (keeps | (self.recompute != "none"))
        return np.where(fits, 0.0, np.inf) + self._allowed(stage), keeps

    @cached_property
    def _least_hops(self) -> _Hops:
        """What a microbatch takes over each boundary at the least: its smallest tensor on the best link."""
        items, topology = self.items, self.costed.topology
        links = [topology.link(a, b) for a in self.devices for b in self.devices if a != b]
        latency = min((link.latency_seconds for link in links), default=0.0)
        bandwidth = max((link.bandwidth_bytes_per_second for link in links), default=np.inf)

        def hops(every: Floats, least: Floats) -> Floats:
            return np.where(every > 0, latency + least / bandwidth, 0.0)

        return _Hops(
            there=hops(items.forward_bytes, items.least_forward_bytes),
            back=hops(items.backward_bytes, items.least_backward_bytes),
        )

    def _meanwhile(self, stage: int) -> int:
        """Microbatches of the other stage of a device that pass between the first and the last of a stage.

        Before the first forward of a second stage, and behind its last backward, as many pass as there are devices.
        """
        return self.num_microbatches - (len(set(self.devices)) if 2 * stage >= self._num_stages else 0)

    @cached_property
    def _estimates(self) -> list[tuple[Floats, NDArray[np.bool_]]]:
        return [self._estimate(stage) for stage in range(self._num_stages)]

    def _estimate(self, stage: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Estimated seconds, without those of the other stage of its device; and whether the stage recomputes."""
        items, device = self.items, self.devices[stage]
        rounds = self.devices.count(device)
        at_start, at_end = self._hops(stage, -1), self._hops(stage, 1)
        seconds = self._stage_seconds(stage, at_start, at_end)
        # What a device receives mostly delays what it does next (`simulate/streams.py`).
        received = rounds * self.num_microbatches * (at_start.there[:, None] + at_end.back[None, :])
        whole = items.between("once_seconds", device) + items.between("update_seconds", device)
        keeping = self._end(stage, seconds) + received + whole
        recomputing = self._end(stage, self._recomputing(stage, seconds)) + received + whole
        saved, held = self._saved(stage), self._held_bytes()
        inputs = items.forward_bytes[:, None] * self.num_live[stage] * self.costed.num_sharing(device)
        one = saved / max(1, self.num_live[stage])
        over_keeping = np.maximum(0.0, self._kept_bytes(stage) - self._limit(stage))
        over_again = np.maximum(0.0, held + inputs + one - self._limit(stage))
        if self.recompute == "all":
            chosen = np.ones(saved.shape, dtype=bool)
        else:
            chosen = (over_again < over_keeping) & (self.recompute == "auto") & self._trains
        taken = np.where(chosen, recomputing, keeping)
        over = np.where(chosen, over_again, over_keeping)
        return taken + _SECONDS_PER_BYTE_OVER * over + self._allowed(stage), chosen

    def _kept_bytes(self, stage: int) -> Floats:
        """Estimated bytes of stages that keep their activations."""
        sharing = self.costed.num_sharing(self.devices[stage])
        late = self.items.between("late_bytes") * self.num_waiting[stage] * sharing
        return self._held_bytes() + self._saved(stage) + late

    def _held_bytes(self) -> Floats:
        return self.items.between("variable_bytes") + 2 * self.items.between("gradient_bytes")

    def _saved(self, stage: int) -> Floats:
        live = self.num_live[stage] * self.costed.num_sharing(self.devices[stage])
        return self.items.between("saved_bytes") * live

    def _limit(self, stage: int) -> int:
        device = self.devices[stage]
        return self.costed.topology.devices[device].memory_bytes // self.devices.count(device)

    def _hops(self, stage: int, step: int) -> _Hops:
        """Seconds of what crosses each boundary, between a stage and the one before (-1) or behind (1)."""
        items, other = self.items, stage + step
        if not 0 <= other < self._num_stages or self.devices[other] == self.devices[stage]:
            return _Hops(there=np.zeros(len(items.forward_bytes)), back=np.zeros(len(items.forward_bytes)))
        link = self.costed.topology.link(self.devices[other], self.devices[stage])

        def hops(sizes: Floats) -> Floats:
            return np.where(sizes > 0, link.latency_seconds + sizes / link.bandwidth_bytes_per_second, 0.0)

        return _Hops(there=hops(items.forward_bytes), back=hops(items.backward_bytes))


def _least(seconds: Floats) -> tuple[float, ...]:
    """Running sums of items that are each on their fastest device, of those of every device."""
    return (0.0, *np.cumsum(np.diff(seconds).min(axis=0)).tolist())


def _passing(hops: Floats, count: int) -> Floats:
    """Seconds over `count` boundaries, of which one is given and the others are the best."""
    return hops + (count - 1) * hops[1:-1].min() if count else np.zeros_like(hops)
