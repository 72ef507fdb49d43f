"""What no pipeline of a sequence of stages can avoid, wherever it is cut: in closed form, and as a linear program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.pipeline.least_cut import end_ranges, least_cut
from partitioner.planner.pipeline.least_share import least_share
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.solve.problem import CutProblem
from partitioner.planner.pipeline.spans import Spans
from partitioner.planner.pipeline.stage_end import StageSeconds
from partitioner.planner.pipeline.stage_sequence import FULL, KEEPS, SELECTIVE, StageSequence

# Memory is taken to be less than this many times its estimate.
_TIMES_OF_ESTIMATE = 2


@dataclass(frozen=True, kw_only=True)
class CutBounds:
    """Bounds of all cuts of a sequence."""

    sequence: StageSequence

    def seconds(self, likely_seconds: float, enough_seconds: float = math.inf) -> float:
        """Lower bound on the step of all cuts into these stages, each of which waits for the stage before it.

        Infinite where there is no cut whose variables and activations fit, unless a number is enough.

        Args:
            likely_seconds: About what the step takes; stages that take longer are looked at only where all do.
            enough_seconds: The bound need not be larger.
        """
        sequence = self.sequence
        likely = min(likely_seconds, enough_seconds)
        seconds = self._least_end(likely)
        if likely < min(seconds, enough_seconds):  # no stage of a better cut takes longer than this one's
            seconds = self._least_end(min(seconds, enough_seconds))
        seconds = min(seconds, enough_seconds)
        if sequence.shares_devices:
            num_devices, count = len(set(sequence.devices)), sequence.num_microbatches
            share = least_share(sequence.schedule, sequence.num_stages, num_devices, count)
            work = float(sequence.items.pass_seconds.min(axis=0)[-1]) + self._least_again_seconds
            work += sequence.items.least_calls(sequence.num_stages) * sequence.costed.least_call_seconds
            seconds = max(seconds, share * work)
        return seconds + self._least_update_seconds

    def problem(self, bound_seconds: float, enough_seconds: float) -> CutProblem | None:
        """What this bound is to be looked at closer for; None where stages may not wait for others.

        Args:
            bound_seconds: The bound.
            enough_seconds: The largest step that matters.
        """
        sequence, items, crossed = self.sequence, self.sequence.items, self.sequence.crossed
        if crossed is None or sequence.num_stages < 2:
            return None
        backward_seconds = items.backward_seconds + (items.again_seconds if sequence.recompute == "all" else 0.0)
        backward = _least(backward_seconds)
        leaves = sequence.parts_backward and sequence.recompute != "all"
        later = items.weights_seconds if leaves else np.zeros_like(backward_seconds)
        if not (spans := sequence.spans(enough_seconds)):
            return None
        tables, most = self._ends(spans), enough_seconds - self._least_update_seconds
        ranges = end_ranges(tables, spans, most, len(items.order))
        there, back = sequence.least_hop_seconds(crossed, ranges)
        return CutProblem(
            forward=_least(items.forward_seconds),
            backward=backward,
            num_leaving=(0, *np.cumsum(np.diff(later).min(axis=0) > 0).tolist()),
            weights=tuple((np.array(backward) - _least(backward_seconds - later)).tolist()),
            once=_least(items.once_seconds),
            summing=_least(items.sum_seconds),
            updating=_least(items.update_seconds),
            call_seconds=sequence.costed.least_call_seconds,
            there_seconds=there,
            back_seconds=back,
            crossing_bytes=(tuple(items.forward_bytes.tolist()), tuple(items.backward_bytes.tolist())),
            routes=tuple((there[:2], back[:2]) for there, back in (hop.routes for hop in sequence.hops)),
            crossed=crossed,
            ranges=ranges,
            keeps=tuple(
                self._keeps(stage, of_stage, table <= most)
                for stage, (of_stage, table) in enumerate(zip(spans, tables, strict=True))
            ),
            devices=tuple(sequence.devices),
            num_microbatches=sequence.num_microbatches,
            schedule=sequence.schedule,
            training=sequence.trains,
            most_work=most / sequence.num_microbatches,
            bound_seconds=bound_seconds,
        )

    def _keeps(self, stage: int, spans: Spans, may_be: NDArray[np.bool_]) -> bool:
        """Whether a stage does not recompute, wherever it may be: it has far more memory."""
        needed = self.sequence.kept_bytes(stage, spans)[may_be]
        fits = _TIMES_OF_ESTIMATE * needed.max(initial=0.0) <= self.sequence.limit_bytes(stage)
        return self.sequence.recompute == "none" or bool(fits)

    @property
    def _least_again_seconds(self) -> float:
        """Seconds of a microbatch that stages compute again at the least, all together, as not all is kept.

        Of each item's activations none are freed, or those that cheap ops make again, or all.
        """
        sequence, items = self.sequence, self.sequence.items
        if not sequence.trains or sequence.recompute == "none":
            return 0.0
        again, cheap = (np.diff(sums).min(axis=0) for sums in (items.again_seconds, items.selective_seconds))
        if sequence.recompute == "all":
            return float(again.sum())
        saved, freed = np.diff(items.saved_bytes), np.diff(items.saved_bytes - items.selective_bytes)
        apart = (freed > 0) & (cheap * saved < again * freed)
        sizes = np.concatenate([np.where(apart, freed, saved), np.where(apart, saved - freed, 0.0)])
        seconds = np.concatenate([np.where(apart, cheap, again), np.where(apart, again - cheap, 0.0)])
        chosen = np.flatnonzero(sizes > 0)
        chosen = chosen[np.argsort(seconds[chosen] / sizes[chosen])]
        lacking = float(saved.sum()) - self._most_kept_bytes
        all_freed, taken = (np.concatenate([[0.0], np.cumsum(values[chosen])]) for values in (sizes, seconds))
        return float(np.interp(lacking, all_freed, taken))

    @property
    def _most_kept_bytes(self) -> float:
        """Activations of a microbatch that devices keep at the most, all together: where few microbatches are live.

        Variables are where many are.
        """
        sequence, variables, kept = self.sequence, float(self.sequence.items.variable_bytes[-1]), 0.0
        live = {device: len(sequence.devices) * sequence.num_microbatches for device in sequence.devices}
        for device, count in zip(sequence.devices, sequence.num_live, strict=True):
            live[device] = min(live[device], max(1, count) * sequence.costed.num_sharing(device))
        for device in sorted(live, key=live.__getitem__, reverse=True):
            limit = sequence.costed.topology.devices[device].memory_bytes
            held = min(variables, float(limit))
            variables, kept = variables - held, kept + (limit - held) / live[device]
        return kept

    @property
    def _least_update_seconds(self) -> float:
        """Seconds of updates on the fullest device, at the least, with a call for them."""
        updates = self.sequence.items.update_seconds.min(axis=0)
        fullest = max(float(np.diff(updates).max(initial=0.0)), float(updates[-1]) / len(set(self.sequence.devices)))
        return fullest + self.sequence.costed.least_call_seconds * (fullest > 0)

    def _least_end(self, most_seconds: float) -> float:
        """The least end of a cut in which no device is busy for longer."""
        spans = self.sequence.spans(most_seconds)
        return least_cut(self._ends(spans), spans, self.sequence.last_sums)[1]

    def _ends(self, spans: Sequence[Spans]) -> list[Floats]:
        """For each stage, when all that needs it has ended at the least, but for updates."""
        return [self._end(stage, of_stage) for stage, of_stage in enumerate(spans)]

    def _end(self, stage: int, spans: Spans) -> Floats:
        possible, way = self._memory(stage, spans)
        return possible + self.sequence.ends(stage, spans, self._stage_seconds(stage, spans), way)

    def _stage_seconds(self, stage: int, spans: Spans) -> StageSeconds:
        seconds = self.sequence.seconds(stage, spans, self.sequence.least_hops)
        once = spans.between("once_seconds", self.sequence.devices[stage])
        return replace(seconds, arriving=np.maximum(seconds.arriving, once))

    def _memory(self, stage: int, spans: Spans) -> tuple[Floats, NDArray[np.intp]]:
        """0 where the stage may be, else infinite; and what it does about its activations."""
        sequence = self.sequence
        limit = sequence.costed.topology.devices[sequence.devices[stage]].memory_bytes
        variables, gradients = spans.between("variable_bytes"), spans.between("gradient_bytes")
        saved, cheaply_saved = (sequence.saved_bytes(stage, spans, selective=selective) for selective in (False, True))
        keeps = (variables + saved <= limit) & (sequence.recompute != "all")
        cheaply = (variables + cheaply_saved <= limit) & (sequence.recompute == "auto")
        fits = (variables + gradients <= limit) & (keeps | (sequence.recompute != "none"))
        possible = np.where(fits, 0.0, np.inf) + sequence.forbidden(stage, spans)
        # Where the stage may not be, any way will do: each takes time to work out.
        return possible, np.where(keeps | np.isinf(possible), KEEPS, np.where(cheaply, SELECTIVE, FULL))


def _least(seconds: Floats) -> tuple[float, ...]:
    """Running sums of items that are each on their fastest device, of those of every device."""
    return (0.0, *np.cumsum(np.diff(seconds).min(axis=0)).tolist())
