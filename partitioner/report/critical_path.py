"""The transfers that a step waits for: those on the critical path of its timeline."""

from __future__ import annotations

from partitioner.ir.plan import PlanDocument, PlannedAction, PlannedTransfer

_EQUAL = 1e-9
"""Moments that differ by less than this share of the step are the same."""


def critical_transfers(plan: PlanDocument) -> tuple[PlannedTransfer, ...]:
    """The transfers on the critical path of the first replica, first to last; they do not overlap.

    The path is followed back from the end of the last bar. A device that was busy until then was so since the bar
    began; one that was idle had waited for the transfer that arrived last, which had waited for its source, or for
    the transfer that used the link before it.
    """
    if not plan.timeline:
        return ()
    last = max(plan.timeline, key=lambda bar: bar.end_seconds)
    return tuple(reversed(_Walk(plan).back_from(last.device, last.end_seconds)))


class _Walk:
    """A walk back in time; it takes no transfer twice, so that it ends."""

    def __init__(self, plan: PlanDocument) -> None:
        self._slack = _EQUAL * plan.predicted.step_seconds
        self._bars: dict[str, list[PlannedAction]] = {}
        for bar in plan.timeline:
            self._bars.setdefault(bar.device, []).append(bar)
        self._arrivals: dict[str, list[PlannedTransfer]] = {}
        for transfer in plan.transfers:
            self._arrivals.setdefault(_receiver(transfer), []).append(transfer)

    def back_from(self, device: str, moment: float) -> list[PlannedTransfer]:
        """The transfers of the path that ends on a device at a moment, last to first."""
        waited: list[PlannedTransfer] = []
        while True:
            bar = self._bar_before(device, moment)
            if bar is not None and bar.end_seconds >= moment - self._slack:
                moment = bar.start_seconds
                continue
            transfer = self._last_arrival(device, moment, since=bar.end_seconds if bar is not None else 0.0)
            if transfer is None and bar is None:
                return waited
            if transfer is None and bar is not None:
                moment = bar.end_seconds  # idle for another reason
            while transfer is not None:
                self._arrivals[_receiver(transfer)].remove(transfer)
                waited.append(transfer)
                device, moment = transfer.source, transfer.start_seconds
                transfer = self._just_ahead_of(transfer)

    def _bar_before(self, device: str, moment: float) -> PlannedAction | None:
        """The last bar of a device that began before a moment."""
        before = [bar for bar in self._bars.get(device, ()) if bar.start_seconds < moment - self._slack]
        return max(before, key=lambda bar: bar.start_seconds, default=None)

    def _last_arrival(self, device: str, moment: float, *, since: float) -> PlannedTransfer | None:
        """The transfer that arrived last before a moment."""
        arrived = [
            transfer
            for transfer in self._arrivals.get(device, ())
            if since + self._slack < transfer.end_seconds <= moment + self._slack
        ]
        return max(arrived, key=lambda transfer: transfer.end_seconds, default=None)

    def _just_ahead_of(self, transfer: PlannedTransfer) -> PlannedTransfer | None:
        """The transfer between the same devices that ended when this one began: this one waited for it."""
        for other in self._arrivals[_receiver(transfer)]:
            if other.source == transfer.source and abs(other.end_seconds - transfer.start_seconds) <= self._slack:
                return other
        return None


def _receiver(transfer: PlannedTransfer) -> str:
    """The device that receives; of a sum of gradients, which all replicas receive, that of the first replica."""
    return transfer.target or transfer.source
