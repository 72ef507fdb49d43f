"""From a plan's `request` back to the request: every argument that a plan keeps is understood again."""

from __future__ import annotations

import pytest

from partitioner.errors import UsageError
from partitioner.moves.request import request_of
from partitioner.options import AsyncUpdates, Constraints, Machine, Parallelism, Request, Search, Step

REQUESTS = {
    "least": Request(machine=Machine(devices="GPU:0-1")),
    "machine": Request(
        machine=Machine(devices=["GPU:0", "GPU:1"], hardware="t4", link="pcie3", memory_limit={"GPU:0": "8GiB"}),
        batch_size=64,
    ),
    "topology": Request(machine=Machine(topology="dgx-h100"), strategy="mixed", replicas=(7, 1), microbatches=4),
    "step": Request(machine=Machine(devices="CPU:0"), step=Step(training=False, loss="mse", input_shape={"x": (3, 4)})),
    "constraints": Request(
        machine=Machine(devices="CPU:0,CPU:1"),
        constraints=Constraints(pins={"a": "CPU:0"}, forbid={"b": "CPU:0,CPU:1"}, colocate=("c|d",)),
        parallelism=Parallelism(schedule="1f1b", recompute="all"),
    ),
    "async": Request(
        machine=Machine(devices="CPU:0,CPU:1"),
        strategy="mirrored",
        parallelism=Parallelism(updates=AsyncUpdates(max_staleness=3)),
    ),
    "search": Request(
        machine=Machine(devices="CPU:0"), search=Search(objective="memory", time_limit=5.0, seed=3, what_if=True)
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_what_it_gave(name: str) -> None:
    given = REQUESTS[name].given
    assert request_of(given).given == given


def test_the_source_is_kept_for_the_record() -> None:
    assert request_of({"devices": "CPU:0"}, source="model.py").step.source == "model.py"


def test_what_json_cannot_say_is_refused_unless_the_model_file_says_it() -> None:
    assert request_of({"devices": "CPU:0", "example_inputs": None}).given == {"devices": "CPU:0"}
    with pytest.raises(UsageError, match="the plan does not say its topology: a value in Python"):
        request_of({"topology": None})
