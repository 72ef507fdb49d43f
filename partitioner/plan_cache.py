"""Plans that were made before, by all that they follow from: the traced step, the request, the costs, the versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import cost_models
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import CapturedStep
from partitioner.user_cache import cache_folder, write_whole

_MOST_PLANS = 30


def plan_key(step: CapturedStep, versions: Mapping[str, str], *more: Any) -> str:
    """The key of a plan: equal for equal steps, versions and values, in this process or another.

    Args:
        step: The traced step.
        versions: Of the packages; how new our own files are counts too, as they may change within a version.
        more: Values that JSON can say: what is asked for, and costs.
    """
    digest = hashlib.sha256(step.graph_def.SerializeToString(deterministic=True))
    for value in (step.graph, step.results, step.loss_reduction, step.fixed_batch, versions, _newest_source(), *more):
        digest.update(msgspec.json.encode(value, order="sorted", enc_hook=repr))  # a path is its text
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def known_plan(key: str) -> PlanDocument | None:
    """The plan with this key; None if there is none that can be read."""
    path = _path(key)
    try:
        plan = PlanDocument.load(path)
        path.touch()
    except (OSError, msgspec.DecodeError):
        return None
    return plan


def remember_plan(key: str, plan: PlanDocument) -> None:
    """Write a plan, and forget those that were longest without use. A cache that cannot be written is no error."""
    try:
        write_whole(_path(key), plan.to_json())
        by_use = sorted(cache_folder().glob("plan-*.json"), key=lambda path: path.stat().st_mtime)
        for path in by_use[:-_MOST_PLANS]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _path(key: str) -> Path:
    return cache_folder() / f"plan-{key}.json"


def _newest_source() -> int:
    """When a file of ours was last modified, in nanoseconds: who works on the planner must not see old plans."""
    packages = (Path(__file__).parent, Path(cost_models.__file__).parent)
    return max(path.stat().st_mtime_ns for package in packages for path in package.rglob("*.py"))
