"""Cut a sequence of items where the estimated step is least, to be simulated: an exact dynamic program.

What transfers and memory are taken to need counts here. What no cut can avoid is in `cut_bounds.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.calls import Calls
from partitioner.planner.pipeline.least_cut import least_cut
from partitioner.planner.pipeline.least_rerun import Need, least_rerun
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.search_space import Recomputed
from partitioner.planner.pipeline.spans import Spans
from partitioner.planner.pipeline.stage_end import StageSeconds
from partitioner.planner.pipeline.stage_sequence import FULL, KEEPS, SELECTIVE, StageSequence
from partitioner.planner.simulate.streams import Streams

# A byte over a limit counts as so many seconds, more than any step takes: first what fits, then the fastest.
_SECONDS_PER_BYTE_OVER = 1e3
# Cuts where devices have several stages, each given what they have in the others: halfway from the last guess to what
# the last cut says.
_TRIES_OF_SHARED = 6


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A cut.

    Attributes:
        ends: Where stages end.
        assignment: Device by item.
        recompute: What stages run again, so as to fit.
        seconds: The estimated step; with bytes over a limit, far more.
        peak_bytes: Estimated, of each device.
    """

    ends: tuple[int, ...]
    assignment: tuple[int, ...]
    recompute: Recomputed
    seconds: float
    peak_bytes: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether it is estimated to fit."""
        return self.seconds < _SECONDS_PER_BYTE_OVER


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    """Stages in one place that have any of some spans of items, in arrays of the spans' shape.

    Attributes:
        seconds: Estimated, without those of the other stages of the device; infinite where constraints forbid it.
        least_seconds: Estimated, whatever the other stages of the device take.
        held_bytes: Of the memory of the device, throughout.
        computed_bytes: What it holds besides while it computes.
        over_bytes: Of both, beyond the stage's share of the limit.
        way: What the stage does about its activations.
    """

    seconds: Floats
    least_seconds: Floats
    held_bytes: Floats
    computed_bytes: Floats
    over_bytes: Floats
    way: NDArray[np.intp]

    def ends(self, meanwhile: float) -> Floats:
        """Seconds, with those of the other stages of the device, and what bytes over the limit count as."""
        return np.maximum(self.seconds + meanwhile, self.least_seconds) + _SECONDS_PER_BYTE_OVER * self.over_bytes


@dataclass(frozen=True, kw_only=True)
class StageSplit:
    """Estimates of all cuts of a sequence.

    Attributes:
        sequence: The sequence.
        spare_bytes: What estimates leave free of the limit of each device; empty for nothing.
    """

    sequence: StageSequence
    spare_bytes: Sequence[int] = ()

    def best(self, likely_seconds: float) -> Cut | None:
        """The cut with the least estimate; None where constraints allow no stages in this order.

        Where no stages fit, the one that exceeds a limit by the fewest bytes. Stages that take longer than is likely
        are looked at only where all do.
        """
        cuts = self._cuts(likely_seconds)
        best = min(cuts, key=_seconds_of, default=None)
        if best is None or not best.fits:
            cuts = self._cuts(math.inf)
        elif best.seconds > likely_seconds:  # no stage of a better cut takes longer than this one
            cuts = self._cuts(best.seconds) or cuts
        return min(map(self._with_waits, cuts), key=_seconds_of, default=None)

    def _cuts(self, most_seconds: float) -> list[Cut]:
        """The best of the cuts in which no device is busy for longer; some where devices have several stages.

        Of a device's stages, each is taken to be busy for its equal part of that at the most.
        """
        spans = self.sequence.spans([most_seconds / self.sequence.devices.count(one) for one in self.sequence.devices])
        return list(map(self._cut, dict.fromkeys(self._ends(spans))))

    def cut(self, ends: Sequence[int]) -> Cut:
        """The cut whose stages end there."""
        return self._with_waits(self._cut(ends))

    def _with_waits(self, cut: Cut) -> Cut:
        crossed = self.sequence.crossed
        if self.sequence.num_stages < 2 or crossed is None or not cut.fits:
            return cut
        return replace(cut, seconds=max(cut.seconds, self._step_seconds(cut.ends, crossed)))

    def _ends(self, spans: Sequence[Spans]) -> Iterator[tuple[int, ...]]:
        """Where stages end in the cuts that are estimated."""
        estimates = [self._estimate(stage, of_stage) for stage, of_stage in enumerate(spans)]
        own = self._even_shares()
        for _ in range(_TRIES_OF_SHARED if self.sequence.shares_devices else 1):
            tables = [one.ends(more) for one, more in zip(estimates, self._meanwhile(own), strict=False)]
            ends, _ = least_cut(tables, spans, self.sequence.last_sums)
            if ends is None:
                return
            yield tuple(ends)
            stages = [*pairwise([0, *ends])]
            now = self._seconds(stages, self._ways_by_shares([(stage, *of) for stage, of in enumerate(stages)]))
            own = [(a + b) / 2 for a, b in zip(own, now, strict=True)]
        if self.sequence.shares_devices:
            yield self._even_ends()

    def _cut(self, ends: Sequence[int]) -> Cut:
        """The same by the seconds of each device alone."""
        sequence, stages = self.sequence, [*pairwise([0, *ends])]
        ways = self._ways(stages)
        meanwhile = self._meanwhile(self._seconds(stages, ways))
        assignment = [0] * len(sequence.items.order)
        seconds = list[float]()
        held, computed = np.zeros(len(self._limit_bytes)), np.zeros(len(self._limit_bytes))
        for stage, (way, (start, end)) in enumerate(zip(ways, stages, strict=True)):
            device, estimate = sequence.devices[stage], self._of_stage(stage, start, end, way)
            seconds.append(max(estimate.seconds.item() + meanwhile[stage], estimate.least_seconds.item()))
            held[device] += estimate.held_bytes.item()
            computed[device] = max(computed[device], estimate.computed_bytes.item())
            for item in sequence.items.order[start:end]:
                assignment[item] = device
        peaks = held + computed
        over = float(np.maximum(0.0, peaks - self._limit_bytes).max())
        step = max(seconds) + float(sequence.last_sums[ends[0]]) + _SECONDS_PER_BYTE_OVER * over
        return Cut(
            ends=tuple(ends),
            assignment=tuple(assignment),
            recompute=Recomputed(
                *(frozenset(np.flatnonzero(np.equal(ways, way)).tolist()) for way in (FULL, SELECTIVE))
            ),
            seconds=step,
            peak_bytes=tuple(peaks.astype(int).tolist()),
        )

    def _step_seconds(self, ends: Sequence[int], crossed: tuple[int, int]) -> float:
        """The longest path through the calls of a cut, and updates."""
        sequence, items, stages = self.sequence, self.sequence.items, [*pairwise([0, *ends])]
        ways = np.array(self._ways(stages))

        def work(*sums: Floats) -> Floats:
            of_stages = zip(cycle(sums), sequence.devices, stages)
            return np.array([of[d][end] - of[d][start] for of, d, (start, end) in of_stages])

        weights = work(items.weights_seconds) if sequence.parts_backward else np.zeros(len(stages))
        first, last = (sum(end < limit for end in ends[:-1]) for limit in (crossed[0], crossed[1] + 1))
        going_back = range(first, last + 1) if sequence.trains else range(0)
        there = [hop.there[end].item() for hop, end in zip(sequence.hops, ends, strict=False)]
        back = [hop.back[end].item() for hop, end in zip(sequence.hops, ends, strict=False)]
        if going_back not in self._calls:
            self._calls[going_back] = Calls(sequence.orders, sequence.devices, going_back)
        calls = self._calls[going_back]
        return calls.step_seconds(
            calls.seconds_of(
                work(items.forward_seconds),
                work(items.backward_seconds) + work(*(items.again_by_way[way] for way in ways)),
                np.where(ways == KEEPS, weights, 0.0),
                sequence.costed.least_call_seconds,
            ),
            (there, back),
            work(items.once_seconds),
            work(items.sum_seconds),
            work(items.update_seconds),
        )

    @cached_property
    def _calls(self) -> dict[range, Calls]:
        return {}

    # -- the other stages of a device, where it has several --------------------------------------------------------

    def _meanwhile(self, own: Sequence[float]) -> list[float]:
        """For each stage, what its device does for its other stages between the first and the last call of it.

        Before the first forward of a stage, and behind its last backward, as many microbatches as there are devices
        pass the device's earlier stage, if there are so many.

        Args:
            own: Seconds of a microbatch in each stage.
        """
        count, devices = self.sequence.num_microbatches, self.sequence.devices
        fewer = max(0, count - len(set(devices)))
        return [
            sum(
                (count if other > stage else fewer) * own[other]
                for other, device in enumerate(devices)
                if device == devices[stage] and other != stage
            )
            for stage in range(len(own))
        ]

    def _even_ends(self) -> tuple[int, ...]:
        """Where stages end such that devices have as nearly as possible equal work, each of an item at the least."""
        seconds, num_stages = self.sequence.items.pass_seconds.min(axis=0), self.sequence.num_stages
        wanted, ends = seconds[-1] * np.cumsum(self._share_of_each)[:-1], list[int]()
        for stage, nearest in enumerate(np.abs(seconds[:, None] - wanted).argmin(axis=0).tolist(), start=1):
            ends.append(min(max(nearest, ends[-1] + 1 if ends else 1), len(seconds) - 1 - (num_stages - stage)))
        return (*ends, len(seconds) - 1)

    def _even_shares(self) -> list[float]:
        """Seconds of a microbatch in each stage, if devices have equal work."""
        of_each = zip(self._share_of_each, self.sequence.devices, strict=True)
        return [share * float(self.sequence.items.pass_seconds[device][-1]) for share, device in of_each]

    @property
    def _share_of_each(self) -> list[float]:
        """Of each stage, of all work, if devices have equal work."""
        devices = self.sequence.devices
        return [1 / len(set(devices)) / devices.count(device) for device in devices]

    def _seconds(self, stages: Sequence[tuple[int, int]], ways: Sequence[int]) -> list[float]:
        """The same for a cut."""
        items, seconds = self.sequence.items, list[float]()
        for device, way, (start, end) in zip(self.sequence.devices, ways, stages, strict=True):
            of_kinds = items.pass_seconds, items.again_by_way[way]
            seconds.append(float(sum(sums[device][end] - sums[device][start] for sums in of_kinds)))
        return seconds

    def _ways(self, stages: Sequence[tuple[int, int]]) -> list[int]:
        """What the stages of a cut do about their activations."""
        ways = [0] * len(stages)
        for device in dict.fromkeys(self.sequence.devices):
            own = tuple(
                (stage, *places) for stage, places in enumerate(stages) if self.sequence.devices[stage] == device
            )
            if own not in self._known_ways:
                self._known_ways[own] = self._ways_of(device, own)
            for (stage, _, _), way in zip(own, self._known_ways[own], strict=True):
                ways[stage] = way
        return ways

    def _ways_of(self, device: int, own: Sequence[tuple[int, int, int]]) -> list[int]:
        """The ways of a device's stages: as their shares of its memory allow, then less runs again while all fit."""
        ways = self._ways_by_shares(own)
        if self.sequence.recompute != "auto" or len(own) == 1 or not any(ways):
            return ways
        needs = [
            [
                Need(
                    held_bytes=(estimate := self._of_stage(stage, start, end, way)).held_bytes.item(),
                    computed_bytes=estimate.computed_bytes.item(),
                    again_seconds=float(again[device][end] - again[device][start]),
                )
                for way, again in enumerate(self.sequence.items.again_by_way)
            ]
            for stage, start, end in own
        ]
        return least_rerun(needs, ways, self._limit_bytes[device])

    def _ways_by_shares(self, stages: Sequence[tuple[int, int, int]]) -> list[int]:
        """The ways of stages that have equal shares of the memory of their devices."""
        return [self._of_stage(*one).way.item() for one in stages]

    @cached_property
    def _known_ways(self) -> dict[tuple[tuple[int, int, int], ...], list[int]]:
        return {}

    # -- each stage alone ------------------------------------------------------------------------------------------

    def _of_stage(self, stage: int, start: int, end: int, way: int | None = None) -> _Estimate:
        """A stage of items start to end, `(1, 1)`; by default in the way that its share of the memory allows."""
        key = stage, start, end, way
        if key not in self._known:
            self._known[key] = self._estimate(stage, Spans.one(self.sequence.items, start, end), way)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int, int, int | None], _Estimate]:
        return {}

    def _estimate(self, stage: int, spans: Spans, given: int | None = None) -> _Estimate:
        sequence, items, device = self.sequence, self.sequence.items, self.sequence.devices[stage]
        live, num_stages = sequence.num_live[stage], sequence.devices.count(device)
        # One stage of a device computes at a time: all share the memory for it.
        limit = self._limit_bytes[device] // num_stages
        inputs = spans.by_start(items.forward_bytes) * live * sequence.costed.num_sharing(device)
        saved, cheaply = (sequence.saved_bytes(stage, spans, selective=selective) for selective in (False, True))
        at_least = sequence.held_bytes(spans)
        held = [sequence.kept_bytes(stage, spans), at_least + cheaply, at_least + inputs]
        whole_again = saved / max(1, live) + sequence.unsummed_bytes(spans)
        again = [np.zeros_like(saved), (saved - cheaply) / max(1, live), whole_again]
        computed = [spans.most_passing_bytes + more for more in again]
        if given is None:
            way = self._way([kept + more / num_stages for kept, more in zip(held, computed, strict=True)], limit)
        else:
            way = np.full(saved.shape, given)
        seconds = sequence.seconds(stage, spans, sequence.hops)
        ends = sequence.ends(stage, spans, seconds, way)
        whole = spans.between("once_seconds", device) + spans.between("update_seconds", device)
        held_bytes, computed_bytes = np.choose(way, held), np.choose(way, computed)
        return _Estimate(
            seconds=ends + self._received(stage, spans) + whole + sequence.forbidden(stage, spans),
            least_seconds=self._ends_of_links(stage, spans, seconds),
            held_bytes=held_bytes,
            computed_bytes=computed_bytes,
            over_bytes=np.maximum(0.0, held_bytes + computed_bytes / num_stages - limit),
            way=way,
        )

    def _ends_of_links(self, stage: int, spans: Spans, seconds: StageSeconds) -> Floats:
        """When a step has ended in which a link to the stage is always busy from the first microbatch to the last.

        Activations have crossed before the last microbatch goes through the stages behind. All that goes through a
        channel does so between its first use and its last, which interleaved stages have earlier and later.
        """
        sequence, count = self.sequence, self.sequence.num_microbatches
        outside = seconds.arriving + seconds.returning
        through = outside + seconds.forward + seconds.backward - seconds.weights + seconds.behind
        around = 0.0 if sequence.shares_devices else outside
        ends = np.zeros((1, 1))
        if stage:
            before = sequence.hops[stage - 1]
            ends = through + (count - 1) * spans.by_start(before.busy_there)
            ends = np.maximum(ends, around + count * spans.by_start(before.busy))
        if stage < sequence.num_stages - 1:
            behind = sequence.hops[stage]
            ends = np.maximum(ends, through + (count - 1) * spans.by_end(behind.busy_back))
            ends = np.maximum(ends, around + count * spans.by_end(behind.busy))
        return ends

    def _way(self, needed_bytes: Sequence[Floats], limit: int) -> NDArray[np.intp]:
        """The first way in which a stage fits, else that with the fewest bytes."""
        sequence, shape = self.sequence, needed_bytes[0].shape
        if sequence.recompute == "all":
            return np.full(shape, FULL)
        if sequence.recompute == "none" or not sequence.trains:
            return np.full(shape, KEEPS)
        fits = [needed <= limit for needed in needed_bytes]
        return np.select(fits, [*range(len(fits))], np.argmin(needed_bytes, axis=0))

    def _received(self, stage: int, spans: Spans) -> Floats:
        """Seconds of copies to the device of a stage that may wait for it, and then delay what it does next."""
        sequence, device = self.sequence, self.sequence.devices[stage]
        rounds = sequence.devices.count(device) * sequence.num_microbatches
        received = np.zeros((1, 1))
        if stage and self._streams.waits(sequence.devices[stage - 1], device, 1):
            received = received + rounds * spans.by_start(sequence.hops[stage - 1].there)
        if stage < sequence.num_stages - 1 and self._streams.waits(sequence.devices[stage + 1], device, 1):
            received = received + rounds * spans.by_end(sequence.hops[stage].back)
        return received

    @cached_property
    def _limit_bytes(self) -> list[int]:
        """Of each device."""
        limits = [placed.memory_bytes for placed in self.sequence.costed.topology.devices]
        return [limit - spare for limit, spare in zip(limits, self.spare_bytes or [0] * len(limits), strict=True)]

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self.sequence.costed.topology)


def _seconds_of(cut: Cut) -> float:
    return cut.seconds
