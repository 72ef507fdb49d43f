"""Steps of placed models, measured: every call has a bar, in the order of the schedule, and nothing changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest

import partitioner
from partitioner.errors import UsageError
from partitioner.ir.plan import MeasuredStep, PlanDocument
from tests import models

DEVICES = ["CPU:1", "CPU:2"]


def measured(**asked: Any) -> tuple[PlanDocument, MeasuredStep]:
    keras.utils.set_random_seed(0)
    model = models.mlp()
    plan = partitioner.plan(model, DEVICES, batch_size=16, time_limit=10, **asked)
    placed = partitioner.place(model, plan)
    before = [variable.numpy() for variable in [*model.variables, *placed.optimizer.variables]]
    step = partitioner.measure_step(placed)
    after = [variable.numpy() for variable in [*model.variables, *placed.optimizer.variables]]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert step.step_seconds > 0 and step.num_steps >= 3
    assert step.ran_on == {name: name for name in plan.used_devices}
    assert min(bar.start_seconds for bar in step.timeline) == 0
    return plan, step


def actions(timeline: Any, device: str) -> list[str]:
    return [bar.action for bar in sorted(timeline, key=lambda bar: bar.start_seconds) if bar.device == device]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_bar_for_every_call_in_the_order_of_the_schedule(schedule: str) -> None:
    asked = partitioner.Parallelism(schedule=schedule)
    plan, step = measured(strategy="layer-split", microbatches=4, parallelism=asked)
    assert len(plan.used_devices) == 2
    for device in plan.used_devices:
        assert actions(step.timeline, device) == actions(plan.timeline, device)
        bars = sorted((b.start_seconds, b.end_seconds) for b in step.timeline if b.device == device)
        assert all(end <= start for (_, end), (start, _) in pairwise(bars))


def test_in_one_piece_forward_comes_before_backward_on_each_device() -> None:
    plan, step = measured(strategy="layer-split", microbatches=1)
    for device in plan.used_devices:
        kinds = [action.lstrip("0123456789")[0] for action in actions(step.timeline, device)]
        assert kinds.index("F") < kinds.index("B")


def test_of_replicas_the_first_is_shown() -> None:
    plan, step = measured(strategy="mirrored")
    assert {bar.device for bar in step.timeline} == {plan.used_devices[0]}
    assert actions(step.timeline, plan.used_devices[0]) == ["0F0", "U"]


def test_asynchronous_replicas_have_no_step_in_common() -> None:
    model = models.mlp()
    updates = partitioner.Parallelism(updates="async")
    plan = partitioner.plan(model, DEVICES, batch_size=16, strategy="mirrored", parallelism=updates, time_limit=10)
    with pytest.raises(UsageError, match="have no step in common"):
        partitioner.measure_step(partitioner.place(model, plan))
