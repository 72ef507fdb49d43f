"""A sequence of items, and the stages that it is cut into: seconds and bytes of stages that have any span of items.

What is chosen among these stages, and what no choice can avoid, is in `split.py` and in `cut_bounds.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.tolerances import ROUNDING
from partitioner.planner.pipeline.hops import Hop, hops_between, seconds_before, seconds_behind
from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import OrderedItems
from partitioner.planner.pipeline.search_space import Recompute
from partitioner.planner.pipeline.spans import Spans
from partitioner.planner.pipeline.stage_end import StageSeconds
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind

KEEPS, SELECTIVE, FULL = range(3)
"""What a stage does about its activations: it keeps them, or runs cheap ops again in its backward, or all of them."""

# Which of the first and of the last stages have no backward is told apart where few items need no gradient.
_MOST_WITHOUT_BACKWARD = 3


@dataclass(frozen=True, kw_only=True)
class StageSequence:
    """Items to cut into stages, and the devices of the stages.

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

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.devices)

    @property
    def shares_devices(self) -> bool:
        """Whether a device has several stages."""
        return self.num_stages > len(set(self.devices))

    @cached_property
    def trains(self) -> bool:
        """Whether there are backwards."""
        return self.costed.graph.training

    @cached_property
    def crossed(self) -> tuple[int, int] | None:
        """The first and the last position that gradients cross, in inference all; None where stages may not wait for
        their neighbours."""
        items, most = self.items, len(self.items.order)
        if not (items.forward_bytes[1:-1] > 0).all():
            return None
        if not self.trains:
            return None if items.backward_bytes[1:-1].any() else (1, most - 1)
        if items.going_back is None:
            return None
        first, last = items.going_back
        return (first, last) if max(first - 1, most - 1 - last) <= _MOST_WITHOUT_BACKWARD else None

    def spans(self, most_seconds: float | Sequence[float]) -> list[Spans]:
        """For each stage the spans that it can have if no stage keeps its device busy for longer; empty without any.

        They are of up to as many items as anywhere take so long, and start where the stages before them can end, and
        those from them on can reach the end.

        Args:
            most_seconds: Of a stage, or of each.
        """
        sums = self.items.least_pass_seconds
        each = np.broadcast_to(np.asarray(most_seconds, dtype=float), self.num_stages)
        most = each / self.num_microbatches * (1 + ROUNDING)
        until = np.concatenate([[0.0], np.cumsum(most)])
        last = np.searchsorted(sums, until[:-1], side="right")
        first = np.searchsorted(sums, sums[-1] - np.cumsum(most[::-1])[::-1])
        if (first >= last).any():
            return []
        lengths = {
            one: int((np.searchsorted(sums, sums + one, side="right") - 1 - np.arange(len(sums))).max())
            for one in set(most.tolist())
        }
        starts = map(range, first.tolist(), last.tolist())
        return [
            Spans.up_to(self.items, max(1, lengths[one]), of_stage)
            for one, of_stage in zip(most.tolist(), starts, strict=True)
        ]

    # -- seconds over boundaries -----------------------------------------------------------------------------------

    @cached_property
    def hops(self) -> list[Hop]:
        """Over each boundary, with all tensors that cross it."""
        return self._hops(self.items.forward_bytes, self.items.backward_bytes)

    @cached_property
    def least_hops(self) -> list[Hop]:
        """The same with the smallest of these tensors, which whatever comes next waits for."""
        return self._hops(self.items.least_forward_bytes, self.items.least_backward_bytes)

    def _hops(self, forward_bytes: Floats, backward_bytes: Floats) -> list[Hop]:
        return hops_between(
            self.devices,
            self.costed.topology,
            crossing=(self.items.forward_bytes, self.items.backward_bytes),
            counted=(forward_bytes, backward_bytes),
            call_seconds=self.costed.least_call_seconds,
        )

    def least_hop_seconds(
        self, crossed: tuple[int, int], ranges: Sequence[tuple[int, int]]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The least of these over each boundary, there and back, where stages but the last end in these ranges.

        A stage waits for the stage before it by a tensor that goes from the one to the other. Gradients count where
        they cross.
        """
        places, sizes, most = self.items.places, self.items.tensor_bytes, len(self.items.order)
        starts, ends = zip((0, 0), *ranges, (most, most), strict=True)
        there, back = list[float](), list[float]()
        for hop, (low, high), *stages in zip(self.hops, ranges, starts, ends[2:], strict=False):
            going_back = range(max(low, crossed[0]), min(high, crossed[1]) + 1)
            there.append(hop.routes[0].seconds(places.forward.least(sizes, range(low, high + 1), *stages)))
            back.append(hop.routes[1].seconds(places.backward.least(sizes, going_back, *stages)))
        return tuple(there), tuple(back)

    # -- seconds of stages -----------------------------------------------------------------------------------------

    def seconds(self, stage: int, spans: Spans, hops: Sequence[Hop]) -> StageSeconds:
        """Seconds of a microbatch; hops are what it takes over boundaries."""
        items, device, last = self.items, self.devices[stage], self.num_stages - 1
        call = self.costed.least_call_seconds
        calls = 2 * call if self.trains and last else call
        later = items.weights_seconds if self.parts_backward else np.zeros_like(items.weights_seconds)
        there, back = items.forward_seconds.min(axis=0), (items.backward_seconds - later).min(axis=0)
        both = (items.pass_seconds - later).min(axis=0)
        third_call = self._third_call(stage, spans)
        hops_there, hops_back = seconds_before(hops, stage)
        behind = both[-1] - both + seconds_behind(hops, stage)
        if self.trains:
            # A stage whose results need no gradient waits for none.
            behind = np.where(items.backward_bytes > 0, behind, 0.0)
        return StageSeconds(
            forward=spans.between("forward_seconds", device) + call,
            backward=spans.between("backward_seconds", device) + calls - call + third_call,
            weights=self._later(stage, spans) + third_call,
            arriving=spans.by_start(there + hops_there),
            returning=spans.by_start(back + hops_back),
            behind=spans.by_end(behind),
            # Those of the first stage come on top of all stages (`last_sums`), and this stage has summed meanwhile.
            summing=(spans.between("sum_seconds", device) - spans.by_start(self.last_sums)) * (stage > 0),
        )

    def ends(self, stage: int, spans: Spans, keeping: StageSeconds, way: NDArray[np.intp]) -> Floats:
        """What `end` gives where the stage does this about its activations, by its seconds where it keeps them."""
        backward = keeping.backward - self._third_call(stage, spans)
        ends = [np.zeros((1, 1))] * 3
        ways = np.flatnonzero(np.bincount(way.ravel()))
        for does in ways:
            taken = keeping
            if does != KEEPS:  # the backward is one call then
                again = spans.total(self.items.again_by_way[does][self.devices[stage]])
                taken = replace(keeping, backward=backward + again, weights=np.zeros_like(keeping.weights))
            ends[does] = self.end(stage, taken)
        return np.choose(way, ends) if len(ways) > 1 else ends[ways[0]]

    def end(self, stage: int, seconds: StageSeconds) -> Floats:
        """Seconds from the start of the step until all that needs the stage has ended, but for updates."""
        kind = self.schedule if self.trains else ScheduleKind.GPIPE
        return seconds.end(kind, self.num_microbatches, max(1, self.num_live[stage]), num_late=self._num_late(stage))

    @property
    def last_sums(self) -> Floats:
        """Seconds of the sums of the first stage, by its end: its last backward is that of the step."""
        return self.items.sum_seconds[self.devices[0]]

    @property
    def parts_backward(self) -> bool:
        """Whether the schedule leaves gradients of weights for later."""
        return self.schedule.parts_backward

    def _later(self, stage: int, spans: Spans) -> Floats:
        """Seconds of a backward that the schedule leaves for later."""
        seconds = spans.between("weights_seconds", self.devices[stage])
        return seconds if self.parts_backward else np.zeros_like(seconds)

    def _third_call(self, stage: int, spans: Spans) -> Floats:
        """Of what is left for later, where there is something, and a stage before that does not wait for it."""
        is_called = (self._later(stage, spans) > 0) & (spans.by_start(self.items.backward_bytes) > 0)
        return np.where(is_called, self.costed.least_call_seconds, 0.0)

    def _num_late(self, stage: int) -> int:
        """Microbatches whose gradients of weights come behind the last backward of a stage."""
        kinds = [action.kind for action in self.orders[str(self.devices[stage])] if action.stage == stage]
        behind = takewhile(lambda kind: kind is not ActionKind.BACKWARD, reversed(kinds))
        return sum(kind is ActionKind.WEIGHTS for kind in behind)

    # -- where stages may be, and their bytes ----------------------------------------------------------------------

    def forbidden(self, stage: int, spans: Spans) -> Floats:
        """0 for a stage of items that may all be on its device, and of which one runs forward, else infinite."""
        wrong = [self.devices[stage] not in self.allowed[item] for item in self.items.order]
        counts = np.concatenate([[0], np.cumsum(wrong)])
        is_idle = self.num_stages > 1 and spans.total(self.items.forward_seconds.max(axis=0)) <= 0
        return np.where((spans.total(counts) > 0) | is_idle | spans.is_empty, np.inf, 0.0)

    def limit_bytes(self, stage: int) -> int:
        """The stage's share of the memory of its device."""
        device = self.devices[stage]
        return self.costed.topology.devices[device].memory_bytes // self.devices.count(device)

    def kept_bytes(self, stage: int, spans: Spans) -> Floats:
        """Estimated bytes of stages that keep their activations."""
        sharing = self.costed.num_sharing(self.devices[stage])
        late = spans.between("late_bytes") * self.num_waiting[stage] * sharing
        return self.held_bytes(spans) + self.saved_bytes(stage, spans) + late

    def held_bytes(self, spans: Spans) -> Floats:
        """Estimated bytes of stages whatever they keep: variables, and sums of gradients."""
        return spans.between("variable_bytes") + spans.between("summed_bytes")

    def unsummed_bytes(self, spans: Spans) -> Floats:
        """Estimated bytes of the gradients of a microbatch that are there besides their sums.

        Stages that keep their activations free as much meanwhile.
        """
        return spans.between("summed_bytes") * (self.num_microbatches > 1)

    @property
    def has_room(self) -> bool:
        """Whether the devices are as large as estimates of any cut are at the least.

        Besides what stages hold, they have what a microbatch keeps or computes again. Where each has a device of its
        own, and these do when they are filled one after the other, they have room; where they share devices, they have
        it one at a time, and all count together.
        """
        items, limits = self.items, [self.costed.topology.devices[device].memory_bytes for device in self.devices]
        own = np.diff(items.variable_bytes + items.summed_bytes)
        kept = np.diff(items.saved_bytes) if self.trains else np.zeros_like(own)
        if self.shares_devices:
            times = [self.devices.count(device) for device in self.devices]
            total = float(own.sum() + kept.sum() / max(times))
            return total <= sum(limit / count for limit, count in zip(limits, times, strict=True))
        stage, held, most = 0, 0.0, 0.0
        for size, passing in zip((own + kept).tolist(), items.passing_bytes.tolist(), strict=True):
            while held + size + max(most, passing) > limits[stage]:
                stage, held, most = stage + 1, 0.0, 0.0
                if stage == len(limits):
                    return False
            held, most = held + size, max(most, passing)
        return True

    def saved_bytes(self, stage: int, spans: Spans, *, selective: bool = False) -> Floats:
        """Bytes of the activations that are kept for backwards, with selective recompute or without."""
        live = self.num_live[stage] * self.costed.num_sharing(self.devices[stage])
        return spans.between("selective_bytes" if selective else "saved_bytes") * live
