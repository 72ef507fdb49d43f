"""Plans made with costs that were measured on the devices present."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from asking import asked

import partitioner
from cost_models.calls import CallCost
from partitioner.errors import UsageError
from partitioner.ir.plan import Origin
from partitioner.measure.measure import (
    crowding_by_name,
    measured_ops,
    overhead_seconds,
    seconds_by_name,
)
from partitioner.measure.step_times import StepTimes
from partitioner.measure.store import read_costs, write_costs
from partitioner.measure.timed_steps import Measurable, TimedStep
from tests import models
from tests.graphs import chain

ROWS = 16
DEVICES = ["CPU:1", "CPU:2"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plan(model: Any, **options: Any) -> Any:
    return partitioner.plan(model, **asked(devices=DEVICES, batch_size=ROWS, time_limit=4, **options))


def test_a_plan_says_what_was_measured() -> None:
    model = models.mlp()
    found = plan(model, costs="measured")
    assert {device.origin for device in found.devices} == {Origin.MEASURED}
    assert found.costs.source == "measured"
    assert found.costs.measured_share == pytest.approx(1.0)
    assert "seconds of ops are measured here" in found.to_text()
    analytic = plan(model)
    assert analytic.costs.source == "analytic"
    assert analytic.predicted.step_seconds != found.predicted.step_seconds


def test_measuring_changes_no_variable_and_the_model_still_trains() -> None:
    model, twin = models.mlp(), models.mlp()
    twin.set_weights(model.get_weights())
    x, y = models.vectors(ROWS)
    for one in (model, twin):
        one.train_on_batch(x, y)
    before = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
    plan(model, costs="measured", microbatches=1)
    after = [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]
    for value, expected in zip(after, before, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert model.train_on_batch(x, y) == pytest.approx(twin.train_on_batch(x, y), rel=1e-6)


def test_what_was_measured_once_is_not_measured_again() -> None:
    model, told = models.mlp(), []
    for _ in range(2):
        told.append([])
        plan(model, costs="measured", microbatches=1, on_progress=lambda text, _: told[-1].append(text))
    assert "measuring ops on CPU:1" in told[0]
    assert "measuring ops on CPU:1" not in told[1]


def test_compiled_steps_are_measured_as_such() -> None:
    """XLA's programs are calls, whose times are shared out; the costs are not those of steps that are not compiled."""
    told: list[list[str]] = []
    for jit_compile in (False, True, True):
        told.append([])
        found = plan(
            models.mlp(),
            costs="measured",
            strategy="single",
            microbatches=1,
            jit_compile=jit_compile,
            on_progress=lambda text, _: told[-1].append(text),
        )
        assert found.costs.measured_share == pytest.approx(1.0)
    assert ["measuring ops on CPU:1" in texts for texts in told] == [True, True, False]


def test_calls_that_the_model_itself_compiles_are_measured(tmp_path: Path) -> None:
    """Keras compiles grouped convolutions on CPUs. Taken for calls of ours, they cost nothing: a ConvNeXt's step was
    predicted at a fifth of what it takes."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Conv2D(8, 3, groups=4), keras.layers.GlobalAveragePooling2D()])
    model.build((ROWS, 12, 12, 8))
    model.compile("sgd", "mse")
    plan(model, costs="measured", strategy="single").save_costs(tmp_path / "costs.json")
    (known,) = read_costs(tmp_path / "costs.json").devices
    calls = [op.seconds for op in known.ops.values() if op.type.endswith("PartitionedCall")]
    assert calls
    assert min(calls) > 0


def test_loops_of_short_ops_take_what_they_take(tmp_path: Path) -> None:
    """TensorFlow's profiler records no op of less than some 3 us: an LSTM of few rows was taken to cost nothing.

    The loops of this one are nearly all of its step; the rest is some 200 ops of a few microseconds each."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((200, 4)), keras.layers.GRU(4)])
    model.compile("sgd", "mse")
    plan(model, costs="measured", strategy="single", microbatches=1).save_costs(tmp_path / "costs.json")
    (known,) = read_costs(tmp_path / "costs.json").devices
    loops = [op.seconds for op in known.ops.values() if op.type.endswith("While")]
    assert len(loops) >= 2
    assert min(loops) > 200 * 5e-6  # 200 turns of a dozen ops


def test_the_time_of_a_call_is_shared_out_by_costs() -> None:
    costed = chain([1.0, 3.0, 2.0], [256, 256, 256]).costed()
    step = Measurable(costed=costed, run=lambda: None, calls={"compiled_0": ("op0", "op1")})
    times = StepTimes(step_seconds=1.0, op_seconds={"compiled_0": 0.6, "op2": 0.3}, num_runs=3)
    assert seconds_by_name(step, times) == pytest.approx({"op0": 0.15, "op1": 0.45, "op2": 0.3})


def test_ops_of_a_call_are_slowed_down_as_the_call_is() -> None:
    """Bug: a loop was slowed down as its kernels are, 1.1 times, where two loops wait for two threads, 1.6 times."""
    costed = chain([1.0, 3.0, 2.0], [256, 256, 256]).costed()
    step = Measurable(costed=costed, run=lambda: None, calls={"called_0": ("op0", "op1")})
    times = StepTimes(step_seconds=1.0, op_seconds={"called_0": 0.6, "op2": 0.3}, num_runs=3)
    ratios = {"called_0": 1.6, "op0": 1.1, "op2": 1.2}
    assert crowding_by_name(step, times, ratios) == {"called_0": 1.6, "op0": 1.6, "op1": 1.6, "op2": 1.2}


def test_ops_of_a_fused_kernel_are_slowed_down_as_the_kernel_is() -> None:
    """Bug: a convolution that ran under the name of its bias was as fast beside others as alone; replicas of a network
    of digits were predicted at 5.9 ms a step, one device at 6.5, and took 9.2 where that took 6.5."""
    costed = chain([1.0, 3.0, 2.0], [256, 256, 256]).costed()
    step = Measurable(costed=costed, run=lambda: None)
    times = StepTimes(step_seconds=1.0, op_seconds={"op1": 0.6, "op2": 0.3}, num_runs=3, kernels={"op1": "_FusedOp"})
    assert crowding_by_name(step, times, {"op1": 1.6, "op2": 1.2}) == {"op0": 1.6, "op1": 1.6, "op2": 1.2}


def timed(step_seconds: float, *op_seconds: float, is_of_model: bool = True) -> TimedStep:
    costed = chain([1.0] * len(op_seconds), [256] * len(op_seconds)).costed()
    alone = {f"op{index}": seconds for index, seconds in enumerate(op_seconds)}
    return TimedStep(
        step=Measurable(costed=costed, run=lambda: None, is_of_model=is_of_model),
        times=StepTimes(step_seconds=step_seconds, op_seconds=alone, num_runs=3),
        alone=alone,
    )


def test_ops_that_ran_at_once_take_no_longer_than_their_step() -> None:
    """Bug: an LSTM of 23 ms, of whose gates two threads compute two at once, was predicted at 27."""
    assert timed(2.0, 3.0, 1.0).adding_up(0.0) == {"op0": 1.5, "op1": 0.5}
    assert timed(5.0, 3.0, 1.0, is_of_model=False).adding_up(0.5) == {"op0": 3.0, "op1": 1.0}
    assert timed(1.0).adding_up(0.0) == {}


def test_the_overhead_of_ops_is_read_where_they_take_the_least() -> None:
    """Bug: ops of a decoder's 460 ms differed from their step by 5 to 25 ms, so that eight parts took 263 to 311."""
    whole, part = timed(460.0, 290.0, 145.0), timed(68.0, 40.0, 20.0)
    sums = timed(5.0, 0.5, is_of_model=False)  # what this takes besides is to hand over its results
    overhead = overhead_seconds([whole, part, sums])
    assert overhead == 4.0
    assert part.adding_up(overhead) == {"op0": 40.0, "op1": 20.0}
    assert whole.adding_up(overhead) == pytest.approx({"op0": 452 * 2 / 3, "op1": 452 / 3})
    assert sums.adding_up(overhead) == {"op0": 0.5}


def test_ops_with_one_signature_still_add_up_to_their_step() -> None:
    """Bug: each took their median, so that a small vision Transformer of 5.3 ms was predicted at 4.3 to 5.1."""
    costed = timed(10.0, 0.0, 1.0, 2.0, 6.0, 0.0).step.costed  # op0 reads nothing, which is another signature
    alone = {"op1": 1.0, "op2": 2.0, "op3": 6.0}  # op4 is not seen: TensorFlow folds it, or takes it for cheap
    first, others = measured_ops(costed, alone, {"op1": 1.5, "op3": 2.0}, num_runs=1).values()
    assert first.seconds == first.crowded_seconds == 0.0
    assert others.seconds * 4 == 9.0
    assert others.crowded_seconds / others.seconds == pytest.approx((1.5 + 12.0) / 7.0)


def test_a_file_plans_elsewhere_as_measuring_does_here(tmp_path: Path) -> None:
    model = models.mlp()
    # On one device: what is found in a few seconds of search differs from search to search.
    here = plan(model, costs="measured", strategy="single", microbatches=1)
    here.save_costs(tmp_path / "costs.json")
    there = plan(models.mlp(), costs=tmp_path / "costs.json", strategy="single", microbatches=1)
    assert there.predicted.step_seconds == pytest.approx(here.predicted.step_seconds)
    assert there.costs.source.endswith("costs.json")


def test_other_sizes_are_inferred_and_the_plan_says_how_much(tmp_path: Path) -> None:
    model = models.mlp()
    plan(model, costs="measured").save_costs(tmp_path / "costs.json")
    other = partitioner.plan(models.mlp(), devices=DEVICES, batch_size=64, time_limit=4, costs=tmp_path / "costs.json")
    assert 0 < other.costs.measured_share < 1


def test_devices_that_share_memory_are_measured_beside_each_other(tmp_path: Path) -> None:
    model, path = models.mlp(), tmp_path / "costs.json"
    plan(model, costs="measured", strategy="single", microbatches=1).save_costs(path)
    (known,) = read_costs(path).devices
    assert known.crowd == len(DEVICES)
    assert any(op.crowded_seconds for op in known.ops.values())


def test_calls_are_measured_where_there_may_be_microbatches(tmp_path: Path) -> None:
    model, path = models.mlp(), tmp_path / "costs.json"
    plan(model, costs="measured", strategy="single", microbatches=1).save_costs(path)
    assert [device.call for device in read_costs(path).devices] == [None]
    plan(model, costs="measured", strategy="single", microbatches=2).save_costs(path)
    costs = read_costs(path)
    (known,) = costs.devices
    assert known.call is not None
    write_costs(replace(costs, devices=(replace(known, call=CallCost(seconds=1.0)),)), path)
    whole, in_two = (plan(model, costs=path, strategy="single", microbatches=count) for count in (1, 2))
    assert whole.predicted.step_seconds < 1
    assert in_two.predicted.step_seconds > 3  # a forward with its backward of each microbatch, and updates


def test_replicas_and_pipelines_of_a_host_take_what_ops_take_beside_others(tmp_path: Path) -> None:
    model, path = models.mlp(), tmp_path / "costs.json"
    plan(model, costs="measured", strategy="single").save_costs(path)
    costs = read_costs(path)
    (known,) = costs.devices
    ways: list[dict[str, Any]] = [
        {"strategy": "single"},
        {"strategy": "single", "microbatches": 2},
        {"strategy": "layer-split", "microbatches": 1},
        {"strategy": "layer-split", "microbatches": 2},
        {"strategy": "mirrored", "microbatches": 1},
    ]
    seconds = []
    for factor in (1.0, 100.0):
        # Of a whole millisecond each: beside that, what this machine takes to dispatch them is little.
        ops = {key: replace(op, seconds=1e-3, crowded_seconds=factor * 1e-3) for key, op in known.ops.items()}
        write_costs(replace(costs, devices=(replace(known, ops=ops),)), path)
        seconds.append([plan(models.mlp(), costs=path, **way).predicted.step_seconds for way in ways])
    single, in_parts, split, pipeline, mirrored = (slow / fast for fast, slow in zip(*seconds, strict=True))
    assert max(single, in_parts, split) < 2
    assert min(pipeline, mirrored) > 2


def test_devices_that_are_not_here_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match="cannot measure on GPU:0"):
        partitioner.plan(models.mlp(), devices=["GPU:0", "GPU:1"], batch_size=ROWS, costs="measured")


def test_a_model_too_large_for_one_device_cannot_be_measured_there() -> None:
    with pytest.raises(UsageError, match="does not fit on CPU:1 alone"):
        plan(models.mlp(), costs="measured", memory_limit="5KiB")


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json"):
        plan(models.mlp(), costs="nowhere.json")
