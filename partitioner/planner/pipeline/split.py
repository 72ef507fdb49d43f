"""Cut a sequence of items where the estimated step is least, to be simulated: an exact dynamic program.

What transfers and memory are taken to need counts here. What no cut can avoid is in `cut_bounds.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.least_cut import least_cut
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.stage_sequence import StageSequence
from partitioner.planner.simulate.program_costs import CALL_SECONDS
from partitioner.planner.simulate.streams import Streams

# A byte over a limit counts as so many seconds, more than any step takes: first what fits, then the fastest.
_SECONDS_PER_BYTE_OVER = 1e3
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
class StageSplit:
    """Estimates of all cuts of a sequence."""

    sequence: StageSequence

    def best(self) -> Cut | None:
        """The cut with the least estimate; None where constraints allow no stages in this order.

        Where no stages fit, the one that exceeds a limit by the fewest bytes.
        """
        best = min(dict.fromkeys(self._ends()), key=lambda ends: self._cut(ends).seconds, default=None)
        return None if best is None else self.cut(best)

    def cut(self, ends: Sequence[int]) -> Cut:
        """The cut whose stages end there."""
        cut, crossed = self._cut(ends), self.sequence.crossed
        if self.sequence.num_stages < 2 or crossed is None or not cut.fits:
            return cut
        return replace(cut, seconds=max(cut.seconds, self._step_seconds(ends, crossed)))

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """Where stages end in the cuts that are estimated."""
        others = self._even_shares()
        for _ in range(_TRIES_OF_INTERLEAVED if self.sequence.is_interleaved else 1):
            tables = [ends + self._meanwhile(place) * others[place] for place, (ends, _) in enumerate(self._estimates)]
            ends, _ = least_cut(tables, self.sequence.last_sums)
            if ends is None:
                return
            yield tuple(ends)
            others = self._seconds_of_others([*pairwise([0, *ends])])

    def _cut(self, ends: Sequence[int]) -> Cut:
        """The same by the seconds of each device alone."""
        sequence, stages = self.sequence, [*pairwise([0, *ends])]
        others = self._seconds_of_others(stages)
        assignment = [0] * len(sequence.items.order)
        seconds, again = [], []
        for stage, (start, end) in enumerate(stages):
            estimate, chosen = self._estimates[stage]
            seconds.append(float(estimate[start, end]) + self._meanwhile(stage) * others[stage])
            if chosen[start, end]:
                again.append(stage)
            for item in sequence.items.order[start:end]:
                assignment[item] = sequence.devices[stage]
        step = max(seconds) + float(sequence.last_sums[ends[0]])
        return Cut(assignment=tuple(assignment), recompute=frozenset(again), seconds=step)

    def _step_seconds(self, ends: Sequence[int], crossed: tuple[int, int]) -> float:
        """The longest path through the calls of a cut, and updates."""
        sequence, items, stages = self.sequence, self.sequence.items, [*pairwise([0, *ends])]
        again = np.array([self._estimates[stage][1][places] for stage, places in enumerate(stages)])

        def work(sums: Floats) -> Floats:
            return np.array(
                [sums[d][end] - sums[d][start] for d, (start, end) in zip(sequence.devices, stages, strict=True)]
            )

        weights = work(items.weights_seconds) if sequence.parts_backward else np.zeros(len(stages))
        first, last = (sum(end < limit for end in ends[:-1]) for limit in (crossed[0], crossed[1] + 1))
        calls = sequence.calls(range(first, last + 1) if sequence.trains else range(0), crossed)
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

    # -- the other stage of a device, where it has two -------------------------------------------------------------

    def _meanwhile(self, stage: int) -> int:
        """Microbatches of the other stage of a device that pass between the first and the last of a stage.

        Before the first forward of a second stage, and behind its last backward, as many pass as there are devices.
        """
        sequence, is_second = self.sequence, 2 * stage >= self.sequence.num_stages
        return sequence.num_microbatches - (len(set(sequence.devices)) if is_second else 0)

    def _even_shares(self) -> list[float]:
        """For each stage, the seconds of a microbatch in the other stage of its device, if all are alike."""
        sequence = self.sequence
        whole = [sequence.items.pass_seconds[device][-1] for device in sequence.devices]
        return [float(seconds) / sequence.num_stages if sequence.is_interleaved else 0.0 for seconds in whole]

    def _seconds_of_others(self, stages: Sequence[tuple[int, int]]) -> list[float]:
        """The same for a cut."""
        devices = self.sequence.devices
        own = [self._own_seconds(stage, *ends) for stage, ends in enumerate(stages)]
        of_device = dict.fromkeys(devices, 0.0)
        for device, seconds in zip(devices, own, strict=True):
            of_device[device] += seconds
        return [of_device[device] - seconds for device, seconds in zip(devices, own, strict=True)]

    def _own_seconds(self, stage: int, start: int, end: int) -> float:
        """Seconds of a microbatch in a stage."""
        items, device, recomputes = self.sequence.items, self.sequence.devices[stage], self._estimates[stage][1]
        sums = items.pass_seconds[device] + (items.again_seconds[device] if recomputes[start, end] else 0.0)
        return float(sums[end] - sums[start])

    # -- each stage alone ------------------------------------------------------------------------------------------

    @cached_property
    def _estimates(self) -> list[tuple[Floats, NDArray[np.bool_]]]:
        return [self._estimate(stage) for stage in range(self.sequence.num_stages)]

    def _estimate(self, stage: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Estimated seconds, without those of the other stage of its device; and whether the stage recomputes."""
        sequence, items, device = self.sequence, self.sequence.items, self.sequence.devices[stage]
        seconds = sequence.seconds(stage, sequence.hops)
        received = self._received(stage)
        whole = items.between("once_seconds", device) + items.between("update_seconds", device)
        keeping = sequence.end(stage, seconds) + received + whole
        recomputing = sequence.end(stage, sequence.recomputing(stage, seconds)) + received + whole
        over_keeping, over_again = self._over_bytes(stage)
        if sequence.recompute == "all":
            chosen = np.ones(keeping.shape, dtype=bool)
        else:
            chosen = (over_again < over_keeping) & (sequence.recompute == "auto") & sequence.trains
        taken = np.where(chosen, recomputing, keeping)
        over = np.where(chosen, over_again, over_keeping)
        return taken + _SECONDS_PER_BYTE_OVER * over + sequence.forbidden(stage), chosen

    def _received(self, stage: int) -> Floats:
        """Seconds of copies to the device of a stage that wait for it: they mostly delay what it does next."""
        sequence, device = self.sequence, self.sequence.devices[stage]
        rounds = sequence.devices.count(device) * sequence.num_microbatches
        received = np.zeros((1, 1))
        if stage and self._streams.waits(sequence.devices[stage - 1], device, 1):
            received = received + rounds * sequence.hops[stage - 1].there[:, None]
        if stage < sequence.num_stages - 1 and self._streams.waits(sequence.devices[stage + 1], device, 1):
            received = received + rounds * sequence.hops[stage].back[None, :]
        return received

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self.sequence.costed.topology)

    def _over_bytes(self, stage: int) -> tuple[Floats, Floats]:
        """Estimated bytes over the limit: of stages that keep their activations, and of those that recompute."""
        sequence, limit = self.sequence, self.sequence.limit_bytes(stage)
        live = sequence.num_live[stage]
        inputs = sequence.items.forward_bytes[:, None] * live * sequence.costed.num_sharing(sequence.devices[stage])
        again = sequence.held_bytes() + inputs + sequence.saved_bytes(stage) / max(1, live)
        return np.maximum(0.0, sequence.kept_bytes(stage) - limit), np.maximum(0.0, again - limit)
