"""A real plan with all that a page shows: four microbatches over two devices, verified and measured."""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest

import partitioner
from partitioner.plan_view import Plan
from tests import models


@pytest.fixture(scope="package")
def real_plan() -> Plan:
    keras.utils.set_random_seed(0)
    model = models.cnn()
    plan = partitioner.plan(
        model, ["CPU:1", "CPU:2"], batch_size=16, strategy="layer-split", microbatches=4, what_if=True, time_limit=10
    )
    placed = partitioner.place(model, plan)
    verification = partitioner.verify(model, placed, num_steps=1)
    return replace(plan, verification=verification, measured=partitioner.measure_step(placed))
