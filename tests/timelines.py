"""Timelines drawn as rows of slots, and the GPUs of hand-written plans."""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.ir.plan import PlannedAction

GPU0 = "/job:localhost/replica:0/task:0/device:GPU:0"
GPU1 = "/job:localhost/replica:0/task:0/device:GPU:1"


def timeline(table: Mapping[str, str], *, slot_seconds: float = 100e-6) -> tuple[PlannedAction, ...]:
    """A timeline from a row of slots per device, `.` for an idle one."""
    return tuple(
        PlannedAction(
            action=action, device=device, start_seconds=slot * slot_seconds, end_seconds=(slot + 1) * slot_seconds
        )
        for device, row in table.items()
        for slot, action in enumerate(row.split())
        if action != "."
    )
