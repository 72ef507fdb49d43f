"""Partition Keras models over devices, at the level of TensorFlow's graph.

plan = partitioner.plan(model, devices=["GPU:0", "GPU:1"], batch_size=256)
placed = partitioner.place(model, plan)      # a keras.Model: compile, fit, evaluate, predict, save
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import (
    CheckError,
    InfeasibleError,
    ModelError,
    PartitionError,
    TimeLimitError,
    UsageError,
    VerificationError,
    WriteError,
)

if TYPE_CHECKING:
    from partitioner.api import auto_place, bench, explain, load, measure_step, place, plan, set_up_devices, verify
    from partitioner.emit.keras.callbacks import StepReport, TensorBoardReport
    from partitioner.options import AsyncUpdates, Constraints, Parallelism, Step
    from partitioner.plan_view import Plan

__version__ = "0.1.0"

__all__ = [
    "AsyncUpdates",
    "CheckError",
    "Constraints",
    "InfeasibleError",
    "ModelError",
    "Parallelism",
    "PartitionError",
    "Plan",
    "Step",
    "StepReport",
    "TensorBoardReport",
    "TimeLimitError",
    "UsageError",
    "VerificationError",
    "WriteError",
    "auto_place",
    "bench",
    "explain",
    "load",
    "measure_step",
    "place",
    "plan",
    "set_up_devices",
    "verify",
]


_CALLBACKS = ("StepReport", "TensorBoardReport")
_OPTIONS = ("AsyncUpdates", "Constraints", "Parallelism", "Step")


def __getattr__(name: str) -> object:
    # TensorFlow takes seconds to import, so the API is imported when first used.
    if name not in __all__:
        raise AttributeError(f"module 'partitioner' has no attribute {name!r}")
    if name in _OPTIONS:
        from partitioner import options as home
    elif name in _CALLBACKS:
        from partitioner.emit.keras import callbacks as home
    elif name == "Plan":
        from partitioner import plan_view as home
    else:
        from partitioner import api as home
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
