"""Verification of right placements passes for every loss, schedule and precision, with CPU:0 in no plan."""

from __future__ import annotations

from itertools import product
from typing import Any

import keras
import pytest
from asking import asked
from keras import layers

import partitioner
from tests import models

REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight")
SCHEDULES: dict[str, dict[str, Any]] = {
    "sequential": {"microbatches": 1, "strategy": "layer-split"},
    "gpipe": {"microbatches": 4, "schedule": "gpipe", "strategy": "layer-split"},
    "1f1b": {"microbatches": 4, "schedule": "1f1b", "strategy": "layer-split"},
    "zb-h1": {"microbatches": 4, "schedule": "zb-h1", "strategy": "layer-split"},
    "interleaved": {"microbatches": 4, "schedule": "interleaved", "strategy": "layer-split"},
    "mirrored": {"strategy": "mirrored"},
}
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
QUICK = (("sum", "1f1b", "float32"), ("sum_over_batch_size", "gpipe", "mixed_float16"))
IN_CI = [case for case in product(REDUCTIONS[:2], SCHEDULES, POLICIES[:2]) if case[2] == "float32" or case[0] == "sum"]
CASES = [
    pytest.param(
        *case,
        id="-".join(case),
        marks=[] if case in QUICK else pytest.mark.slow if case in IN_CI else pytest.mark.grid,
    )
    for case in product(REDUCTIONS, SCHEDULES, POLICIES)
]


def built(reduction: str, policy: str) -> keras.Model:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        x = inputs = keras.Input((models.WIDTH,))
        for index in range(3):
            x = layers.Dense(16, activation="gelu", name=f"hidden_{index}")(x)
        model = keras.Model(inputs, layers.Dense(models.CLASSES, name="scores")(x))
    finally:
        keras.config.set_dtype_policy(before)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    return model


@pytest.mark.parametrize(("reduction", "schedule", "policy"), CASES)
def test_a_right_placement_passes(reduction: str, schedule: str, policy: str) -> None:
    """Bug: a loss that is a sum made ops on CPU:0, in no plan; in float16, Adam made rounding look like a fault."""
    keras.utils.set_random_seed(1)
    model = built(reduction, policy)
    options = SCHEDULES[schedule]
    if options["strategy"] == "layer-split":
        options = options | {
            "pins": {f"hidden_{index}": f"CPU:{1 + index % 2}" for index in range(3)} | {"scores": "CPU:2"}
        }
    plan = partitioner.plan(model, **asked(devices="CPU:1,CPU:2", batch_size=16, time_limit=10.0, **options))
    verification = partitioner.verify(model, partitioner.place(model, plan), num_steps=3)
    assert verification.misplaced_ops == ()
    assert verification.passed, verification
