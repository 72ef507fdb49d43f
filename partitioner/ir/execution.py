"""How a step is to run: where its ops go, and how its batch passes through them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A placement and a schedule for one step.

    Attributes:
        placement: Device of every op.
        stage_devices: Devices that may hold a stage; ops elsewhere (on the host of a GPU) belong to their readers.
        num_microbatches: Parts that a batch is cut into.
        schedule: Order of the stages' work, by the name of a `ScheduleKind`.
        recompute: Stages that rerun their forward ops in the backward pass.
    """

    placement: Mapping[str, str]
    stage_devices: Collection[str]
    num_microbatches: int = 1
    schedule: str = "sequential"
    recompute: Collection[int] = ()

    @property
    def is_staged(self) -> bool:
        """Whether the step runs as stage programs; otherwise as one graph, every op as soon as it can."""
        return self.num_microbatches > 1 or self.schedule != "sequential" or bool(self.recompute)
