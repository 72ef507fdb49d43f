"""Partition Keras models over devices, at the level of TensorFlow's graph.

plan = partitioner.plan(model, devices=["GPU:0", "GPU:1"], batch_size=256)
placed = partitioner.place(model, plan)      # a keras.Model: compile, fit, evaluate, predict, save
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import (
    InfeasibleError,
    ModelError,
    PartitionError,
    TimeLimitError,
    UsageError,
    VerificationError,
)

if TYPE_CHECKING:
    from partitioner.api import Plan, auto_place, load, place, plan, set_up_devices, verify

__version__ = "0.1.0"

__all__ = [
    "InfeasibleError",
    "ModelError",
    "PartitionError",
    "Plan",
    "TimeLimitError",
    "UsageError",
    "VerificationError",
    "auto_place",
    "load",
    "place",
    "plan",
    "set_up_devices",
    "verify",
]


def __getattr__(name: str) -> object:
    # TensorFlow takes seconds to import, so the API is imported when first used.
    if name in __all__:
        from partitioner import api

        return getattr(api, name)
    raise AttributeError(f"module 'partitioner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
