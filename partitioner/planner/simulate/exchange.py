"""The exchange in which replicas sum their gradients, as one event of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from partitioner.ir.schedule import Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An exchange between devices of different replicas: each sends every other the same number of bytes."""

    devices: tuple[str, ...]
    bytes_per_pair: int
    start_seconds: float
    end_seconds: float

    def sends(self) -> Iterator[Send]:
        """The transfers of the exchange."""
        for source, target in permutations(self.devices, 2):
            yield Send(
                tensor="",
                source=source,
                target=target,
                size_bytes=self.bytes_per_pair,
                start_seconds=self.start_seconds,
                end_seconds=self.end_seconds,
            )
