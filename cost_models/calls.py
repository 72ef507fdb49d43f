"""What it takes to call a stage program, besides its ops."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """Seconds to start a function, to hand it its tensors and to take over its results.

    Attributes:
        seconds: Of any call. Where calls were not measured, 50 to 90 us between CPU devices of TensorFlow 2.21 on a
            2-core x86 virtual machine, with a few tensors.
        tensor_seconds: For each tensor that it is given or returns.
    """

    seconds: float = 70e-6
    tensor_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in (self.seconds, self.tensor_seconds)):
            raise ValueError(f"a call was measured to take {self.seconds} s, and {self.tensor_seconds} s per tensor")

    def of(self, num_tensors: int) -> float:
        """Seconds of a call that is given and returns so many tensors together."""
        return self.seconds + num_tensors * self.tensor_seconds
