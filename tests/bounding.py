"""Bounds by linear programs for tests, in one process for all: OR-Tools changes what TensorFlow logs beside it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from partitioner.planner.pipeline.solve.problem import BoundRequest, LeastStep


def closer_steps(request: BoundRequest) -> tuple[LeastStep, ...]:
    """What `partitioner.planner.pipeline.solve.closer.closer_steps` finds."""
    return _pool().submit(_closer_steps, request).result()


@cache
def _pool() -> Any:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _closer_steps(request: BoundRequest) -> tuple[LeastStep, ...]:
    from partitioner.planner.pipeline.solve import closer

    return closer.closer_steps(request)
