"""Limits of memory on a traced model: a placement that fits is found with every objective."""

from __future__ import annotations

import keras
from keras import layers

import partitioner
from partitioner.ir.plan import PlanDocument


def planned(model: keras.Model, memory_limit: int, objective: str) -> PlanDocument:
    return partitioner.plan(
        model,
        devices="CPU:0,CPU:1",
        batch_size=64,
        objective=objective,
        memory_limit=memory_limit,
        time_limit=10,
    )


def test_something_that_fits_is_found_though_what_the_solver_places_passes_the_limit() -> None:
    """Peaks of single ops are the simulation's: by the solver's account, two placements are equally full."""
    hidden = [layers.Dense(512, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    least = max(planned(model, 2**30, "memory").predicted.peak_bytes.values())
    limit = int(1.03 * least)
    assert max(planned(model, limit, "throughput").predicted.peak_bytes.values()) <= limit
