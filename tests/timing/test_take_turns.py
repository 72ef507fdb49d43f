"""A placed model timed beside one device and MirroredStrategy: who runs, what is left as it was, which rounds count."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import partitioner
from partitioner.ir.devices import short_name
from partitioner.timing.busy_loops import BusyLoops
from partitioner.timing.contenders import MIRRORED, ONE_DEVICE, PLAN, Ready
from partitioner.timing.result import Benchmark, Contender
from partitioner.timing.take_turns import _contender, _take_turns, _Turns
from tests import models
from tests.asking import asked

ROWS = 8
BRIEF = {"num_steps": 1, "num_rounds": 2}


def placed(model: keras.Model, **options: Any) -> Any:
    settings = {"devices": ["CPU:1", "CPU:2"], "batch_size": ROWS, "strategy": "layer-split", "time_limit": 5}
    return partitioner.auto_place(model, **asked(**(settings | options)))


def by_name(benchmark: Benchmark) -> dict[str, Contender]:
    return {contender.name: contender for contender in benchmark.contenders}


def test_all_three_run_and_the_model_is_left_as_it_was() -> None:
    model = models.mlp()
    subject = placed(model)
    x, y = models.vectors(ROWS)
    subject.train_on_batch(x, y)
    held = [*model.variables, *subject.optimizer.variables]
    before = [variable.numpy() for variable in held]
    told: list[str] = []
    found = partitioner.bench(model, subject, **BRIEF, on_progress=told.append)
    contenders = by_name(found)
    assert {name: [short_name(device) for device in one.devices] for name, one in contenders.items()} == {
        PLAN: ["CPU:1", "CPU:2"],
        ONE_DEVICE: ["CPU:1"],
        MIRRORED: ["CPU:1", "CPU:2"],
    }
    for contender in found.contenders:
        assert len(contender.round_seconds) == 2
        assert contender.median_seconds is not None
        assert min(contender.round_seconds) <= contender.median_seconds <= max(contender.round_seconds)
    single = {b.name: b.step_seconds for b in subject.plan.baselines}["single-device CPU:1"]
    assert contenders[PLAN].predicted_seconds == subject.plan.predicted.step_seconds
    assert contenders[ONE_DEVICE].predicted_seconds == single
    assert contenders[MIRRORED].predicted_seconds is None
    assert {peak.device: peak.predicted_bytes for peak in found.memory} == subject.plan.predicted.peak_bytes
    assert {peak.measured_bytes for peak in found.memory} == {None}
    assert (found.batch_size, found.training, found.num_rounds, found.has_stand_ins) == (ROWS, True, 2, False)
    assert [line.split()[0] for line in told] == ["warming", "warming", "warming", "2"]
    for old, variable in zip(before, held, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())
    assert partitioner.verify(model, subject, num_steps=2).passed


def test_inference_has_no_mirrored_strategy() -> None:
    model = models.dict_of_outputs()
    contenders = by_name(partitioner.bench(model, placed(model, training=False), **BRIEF))
    assert contenders[PLAN].median_seconds
    assert contenders[ONE_DEVICE].median_seconds
    assert (contenders[MIRRORED].median_seconds, contenders[MIRRORED].reason) == (None, "not run: it is for training")


def test_a_model_that_keras_cannot_clone_is_built_anew() -> None:
    model = models.subclassed()
    subject = placed(model, strategy="mirrored", max_staleness=4, input_shape=(models.WIDTH,))
    alone = by_name(partitioner.bench(model, subject, **BRIEF))
    for name in (ONE_DEVICE, MIRRORED):
        assert alone[name].median_seconds is None
        assert alone[name].reason.startswith("not run: Keras cannot clone this model")
    beside = by_name(partitioner.bench(model, subject, **BRIEF, build=models.subclassed))
    assert all(contender.median_seconds for contender in beside.values())
    with pytest.raises(partitioner.UsageError, match="the plan is for another model"):
        partitioner.bench(model, subject, **BRIEF, build=models.mlp)


def test_rows_that_cannot_be_divided_and_a_model_that_does_not_fit_alone() -> None:
    model = models.mlp()
    subject = placed(model, batch_size=7)
    plan = subject.plan
    subject.plan = replace(plan, baselines=tuple(replace(baseline, fits=False) for baseline in plan.baselines))
    contenders = by_name(partitioner.bench(model, subject, **BRIEF))
    assert contenders[ONE_DEVICE].reason == "not run: the model does not fit on CPU:1, by the plan"
    assert contenders[MIRRORED].reason == "not run: 7 rows cannot be divided evenly over 2 devices"


def test_a_plan_of_one_device_has_nothing_beside_it() -> None:
    model = models.mlp()
    contenders = by_name(partitioner.bench(model, placed(model, strategy="single"), **BRIEF))
    assert contenders[ONE_DEVICE].reason == "not run: the plan itself uses one device"
    assert contenders[MIRRORED].reason == "not run: the plan uses one device"


def test_alone_and_on_a_stand_in_for_a_gpu() -> None:
    model = models.mlp()
    found = partitioner.bench(model, placed(model, devices=["GPU:0"], strategy="single"), **BRIEF, alone=True)
    assert [contender.name for contender in found.contenders] == [PLAN]
    assert found.has_stand_ins
    assert "say nothing about GPUs" in " ".join(found.to_text().split())


def test_wrong_use_is_refused() -> None:
    model = models.mlp()
    subject = placed(model)
    with pytest.raises(partitioner.UsageError, match=r"bench\(\) needs the model that `placed` was made from"):
        partitioner.bench(models.mlp(), subject)
    with pytest.raises(partitioner.UsageError, match="num_rounds is 0; expected at least 1"):
        partitioner.bench(model, subject, num_rounds=0)


def turns(name: str, run: Any) -> _Turns:
    return _Turns(name=name, ready=Ready(devices=("/CPU:0",), predicted_seconds=None, run=run))


@pytest.fixture
def no_loops(monkeypatch: pytest.MonkeyPatch) -> BusyLoops:
    """Busy loops of no process: a round takes nothing."""
    monkeypatch.setattr(BusyLoops, "run", lambda self: None)
    return BusyLoops(processes=())


def test_each_round_another_one_begins(no_loops: BusyLoops) -> None:
    order: list[str] = []
    contenders = [turns(name, lambda name=name: order.append(name)) for name in "abc"]
    _take_turns(contenders, no_loops, 2, 3)
    assert "".join(order) == "aabbcc" + "bbccaa" + "ccaabb"
    assert [len(contender.seconds) for contender in contenders] == [3, 3, 3]


def test_one_that_runs_out_of_memory_has_no_more_turns_and_the_placed_model_is_an_error(no_loops: BusyLoops) -> None:
    count = itertools.count()

    def run() -> None:
        if next(count) == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\nmore")

    other = turns(ONE_DEVICE, run)
    _take_turns([turns(PLAN, lambda: None), other], no_loops, 1, 4)
    assert len(other.seconds) == 1
    assert other.reason == "ran out of memory beside the placed model: OOM when allocating"
    count = itertools.count(1)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        _take_turns([turns(PLAN, run)], no_loops, 1, 1)


@pytest.mark.parametrize(
    ("together", "median_seconds"),
    [([1.0, 1.0, 1.0], 2.0), ([1.0, 1.0, 2.0], 1.5), ([2.0, 2.0, 2.0], 2.0)],
)
def test_disturbed_rounds_do_not_count_unless_all_are(together: list[float], median_seconds: float) -> None:
    loops = BusyLoops(processes=[None, None], alone=[1.0, 1.0, 1.0], together=together)  # type: ignore[list-item]
    ran = turns(PLAN, lambda: None)
    ran.seconds = [1.0, 2.0, 9.0]
    assert _contender(ran, loops).median_seconds == median_seconds
