"""What the stages of a device run again, as little as its memory allows: a knapsack, filled greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a stage takes in one of its ways.

    Attributes:
        held_bytes: Of the memory of the device, throughout.
        computed_bytes: What it holds besides while it computes.
        again_seconds: Of a microbatch, for what runs again.
    """

    held_bytes: float
    computed_bytes: float
    again_seconds: float


def least_rerun(needs: Sequence[Sequence[Need]], ways: Sequence[int], limit_bytes: float) -> list[int]:
    """The ways of a device's stages, with less that runs again where all of them fit.

    What takes longest to run again for its bytes is kept first.

    Args:
        needs: Of each stage, by way: the first runs least again.
        ways: Of each stage, to begin with; they are returned where not even these fit.
        limit_bytes: Of the device.
    """
    chosen = [*ways]

    def fits() -> bool:
        now = [of_stage[way] for of_stage, way in zip(needs, chosen, strict=True)]
        held, computed = sum(need.held_bytes for need in now), max(need.computed_bytes for need in now)
        return held + computed <= limit_bytes

    def gain(stage: int, way: int) -> float:
        now, then = needs[stage][ways[stage]], needs[stage][way]
        return (now.again_seconds - then.again_seconds) / max(1.0, then.held_bytes - now.held_bytes)

    if not fits():
        return chosen
    less = [(stage, way) for stage, now in enumerate(ways) for way in range(now)]
    for stage, way in sorted(less, key=lambda one: gain(*one), reverse=True):
        before = chosen[stage]
        chosen[stage] = min(way, before)
        if not fits():
            chosen[stage] = before
    return chosen
