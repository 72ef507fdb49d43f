"""One device is kept where more devices are predicted to gain less than such predictions have been wrong by."""

from __future__ import annotations

from partitioner.ir.plan import Objective
from partitioner.ir.units import plural
from partitioner.planner.model.tolerances import LEAST_GAIN
from partitioner.spelling import argument


def is_kept(one_device_seconds: float, seconds: float, objective: Objective) -> bool:
    """Whether a step on one device is to be preferred to a step on more, by their seconds."""
    return objective is not Objective.MEMORY and one_device_seconds <= seconds * (1 + LEAST_GAIN)


def note_on_kept(one_device_seconds: float, seconds: float, num_devices: int) -> str:
    """What more devices would have gained; empty if nothing."""
    if seconds >= one_device_seconds:
        return ""
    return (
        f"{plural(num_devices, 'device')} would be {one_device_seconds / seconds:.2f} times as fast, a gain below the "
        f"{LEAST_GAIN:.0%} by which such predictions have been wrong: one device is kept, "
        f"{argument('strategy', 'layer-split')} takes more"
    )
