"""Cut items in forward order into stages that minimise the slowest stage, within memory.

A dynamic program over cut positions, exact for the estimate it works on: a stage takes a microbatch's forward and
backward, its share of what runs once a step, and the time to send its outputs. Results are evaluated by simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cost_models.communication import transfer_seconds
from partitioner.ir.costed import CostedGraph
from partitioner.planner.pipeline.item_order import OrderedItems


@dataclass(frozen=True, kw_only=True)
class StageSplit:
    """A sequence of items to cut, and the devices of the stages.

    Attributes:
        items: The items in order.
        costed: The graph at the same batch size; its topology has the limits.
        devices: Device of each stage, by index; a device may occur several times and shares its limit evenly.
        num_microbatches: Parts of the batch.
        allowed: Devices that each item may take.
        num_live: For each stage, the microbatches whose activations it holds at a time.
        recompute: Whether stages keep only their inputs.
    """

    items: OrderedItems
    costed: CostedGraph
    devices: Sequence[int]
    num_microbatches: int
    allowed: Sequence[Collection[int]]
    num_live: Sequence[int]
    recompute: bool = False

    def best(self) -> tuple[int, ...] | None:
        """Device by item; None where constraints allow no stages in this order.

        Where no stages fit, those that exceed the limits by the fewest bytes in all.
        """
        count, num_stages = len(self.items.order), len(self.devices)
        wrong = self._wrong_counts()
        # best[k]: over all cuts of the first k items into the stages so far, bytes over limits and seconds.
        best: list[tuple[float, float] | None] = [None] * (count + 1)
        best[0] = (0.0, 0.0)
        cuts: list[list[int]] = []
        for stage in range(num_stages):
            following: list[tuple[float, float] | None] = [None] * (count + 1)
            cut = [-1] * (count + 1)
            for end in range(stage + 1, count - (num_stages - stage - 1) + 1):
                for start in range(end - 1, stage - 1, -1):
                    before, least = best[start], following[end]
                    if wrong[stage][end] != wrong[stage][start]:
                        break
                    if least is not None and least[0] == 0.0 and self._work_seconds(start, end, stage) >= least[1]:
                        break
                    if before is None:
                        continue
                    over, seconds = self._cost(start, end, stage)
                    candidate = (before[0] + over, max(before[1], seconds))
                    if least is None or candidate < least:
                        following[end], cut[end] = candidate, start
            best = following
            cuts.append(cut)
        return None if best[count] is None else self._assignment(cuts)

    def _assignment(self, cuts: Sequence[Sequence[int]]) -> tuple[int, ...]:
        assignment = [0] * len(self.items.order)
        end = len(self.items.order)
        for stage in range(len(self.devices) - 1, -1, -1):
            start = cuts[stage][end]
            for item in self.items.order[start:end]:
                assignment[item] = self.devices[stage]
            end = start
        return tuple(assignment)

    def _wrong_counts(self) -> list[list[int]]:
        """For each stage, how many of the first i items may not be on its device."""
        rows = []
        for device in self.devices:
            row = [0]
            for item in self.items.order:
                row.append(row[-1] + (device not in self.allowed[item]))
            rows.append(row)
        return rows

    def _work_seconds(self, start: int, end: int, stage: int) -> float:
        items, device = self.items, self.devices[stage]
        seconds = items.pass_seconds[device][end] - items.pass_seconds[device][start]
        if self.recompute:
            seconds += items.forward_seconds[device][end] - items.forward_seconds[device][start]
        whole = items.whole_seconds[device][end] - items.whole_seconds[device][start]
        return seconds + whole / self.num_microbatches

    def _cost(self, start: int, end: int, stage: int) -> tuple[float, float]:
        items, device = self.items, self.devices[stage]
        seconds = self._work_seconds(start, end, stage)
        for other, size in ((stage + 1, items.forward_bytes[end]), (stage - 1, items.backward_bytes[start])):
            if 0 <= other < len(self.devices) and self.devices[other] != device and size:
                seconds += transfer_seconds(size, self.costed.topology.link(device, self.devices[other]))
        saved = items.saved_bytes[end] - items.saved_bytes[start]
        kept = items.forward_bytes[start] if self.recompute else saved
        active = kept * self.num_live[stage] + (saved if self.recompute else 0.0)
        held = items.fixed_bytes[end] - items.fixed_bytes[start] + active * self.costed.num_sharing(device)
        limit = self.costed.topology.devices[device].memory_bytes // self.devices.count(device)
        return float(max(0, held - limit)), seconds
