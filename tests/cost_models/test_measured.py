"""Seconds of ops that ran, and what is inferred from them, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.hardware import Device
from cost_models.measured import MeasuredCosts, MeasuredDevice, MeasuredLink, MeasuredOp, signature
from cost_models.specs import OpCost, OpSpec, TensorSpec

# 1 GFLOP/s and 1 GB/s: seconds are read off FLOPs and bytes.
DEVICE = Device(
    name="plain",
    title="plain",
    peak_flops={"float32": 1e9},
    memory_bytes=1 << 30,
    memory_bandwidth_bytes_per_second=1e9,
    launch_overhead_seconds=1.0,
    source="made up",
    date="2026",
)


def op(rows: int, type: str = "MatMul", dtype: str = "float32") -> OpSpec:
    tensor = TensorSpec(shape=(rows,), dtype=dtype)
    return OpSpec(type=type, inputs=(tensor,), outputs=(tensor,))


def ran(flops: int, seconds: float, type: str = "MatMul", dtype: str = "float32") -> MeasuredOp:
    return MeasuredOp(type=type, dtype=dtype, flops=flops, moved_bytes=0, seconds=seconds, num_runs=3)


def device(ops: dict[str, MeasuredOp], overhead: float = 0.0) -> MeasuredDevice:
    return MeasuredDevice(type="CPU", title="it", hardware="plain", overhead_seconds=overhead, ops=ops)


def seconds(known: MeasuredDevice, spec: OpSpec, flops: int, dtype: str = "float32") -> float:
    return known.seconds(spec, OpCost(flops=flops), DEVICE, dtype)


def test_an_op_that_ran_takes_what_it_took_and_the_overhead() -> None:
    known = device({signature(op(8)): ran(10**9, 3.0)}, overhead=0.25)
    assert known.has(op(8))
    assert seconds(known, op(8), 10**9) == pytest.approx(3.25)


def test_among_others_an_op_takes_what_it_took_there_and_never_less_than_alone() -> None:
    beside = {signature(op(8)): replace(ran(10**9, 3.0), crowded_seconds=4.5)}
    known = replace(device(beside, overhead=0.25), crowd=2)
    cost = OpCost(flops=10**9)
    assert known.seconds(op(8), cost, DEVICE, "float32", crowded=True) == pytest.approx(4.75)
    assert known.seconds(op(8), cost, DEVICE, "float32") == pytest.approx(3.25)
    # Another size takes its roofline time by the ratio that was found there.
    twice = OpCost(flops=2 * 10**9)
    assert known.seconds(op(16), twice, DEVICE, "float32", crowded=True) == pytest.approx(9.25)
    faster = device({signature(op(8)): replace(ran(10**9, 3.0), crowded_seconds=2.0)})
    assert faster.seconds(op(8), cost, DEVICE, "float32", crowded=True) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="MatMul was measured to take -1"):
        replace(ran(1, 1.0), crowded_seconds=-1.0)


def test_an_op_that_hands_on_a_buffer_takes_nothing() -> None:
    known = device({signature(op(8)): ran(10**9, 3.0)}, overhead=0.25)
    assert seconds(known, op(8, "Reshape"), 0) == 0.0


def test_another_size_takes_its_roofline_time_by_the_same_ratio() -> None:
    # Measured 3 s for a roofline of 1 s; the launch overhead of the catalogue is no part of it.
    known = device({signature(op(8)): ran(10**9, 3.0)})
    assert not known.has(op(16))
    assert seconds(known, op(16), 2 * 10**9) == pytest.approx(6.0)


def test_half_way_between_two_ratios_lies_their_geometric_mean() -> None:
    known = device({"a": ran(10**8, 0.1 * 2), "b": ran(10**10, 10.0 * 8)})
    assert seconds(known, op(16), 10**9) == pytest.approx(math.sqrt(2 * 8), rel=1e-6)


def test_the_nearest_weighs_most() -> None:
    known = device({"a": ran(10**8, 0.1 * 2), "b": ran(10**10, 10.0 * 8)})
    assert 2.0 < seconds(known, op(16), 2 * 10**8) / 0.2 < 4.0
    assert 4.0 < seconds(known, op(16), 5 * 10**9) / 5.0 < 8.0


def test_an_op_type_that_never_ran_is_taken_for_the_others_of_its_dtype() -> None:
    known = device({"a": ran(10**9, 2.0), "b": ran(10**9, 50.0, dtype="float64")})
    assert seconds(known, op(4, "Conv2D"), 10**9) == pytest.approx(2.0)


def test_where_nothing_ran_the_roofline_is_left() -> None:
    assert seconds(device({}, overhead=0.5), op(4), 10**9) == pytest.approx(1.5)


def test_an_op_that_was_folded_away_tells_nothing_of_others() -> None:
    known = device({signature(op(4)): ran(10**9, 0.0), "b": ran(10**9, 3.0)})
    assert seconds(known, op(4), 10**9) == 0.0
    assert seconds(known, op(5), 10**9) == pytest.approx(3.0)


def test_ops_that_do_next_to_nothing_tell_nothing_of_large_ones() -> None:
    """Fixed bug: a scalar that took a thousand times its roofline time made large ops a thousand times too long."""
    known = device({"scalar": ran(1, 1e-6), "large": ran(10**9, 2.0 + 1e-6)})
    assert seconds(known, op(16), 2 * 10**9) == pytest.approx(4.0 + 1e-6)
    assert seconds(device({"scalar": ran(1, 1e-6)}), op(16), 2 * 10**9) == pytest.approx(2.0 + 1e-6)


def test_an_op_that_did_not_run_takes_what_one_without_work_takes_besides_its_work() -> None:
    """Bug: ratios were of what ops took beyond that, and then nobody added it, so that small ops took nothing."""
    known = device({"scalar": ran(1, 0.25), "large": ran(10**9, 2.0 + 0.25)}, overhead=0.5)
    assert seconds(known, op(16), 2 * 10**9) == pytest.approx(0.25 + 4.0 + 0.5)


def test_noise_on_little_work_tells_nothing_of_large_ops() -> None:
    """Bug: one concatenation of a few bytes that was held up made all others take seconds."""
    known = device({"idle": ran(1, 1e-6), "held up": ran(10, 50e-6), "other": ran(10**9, 2.0, type="Relu")})
    assert seconds(known, op(16), 2 * 10**9) == pytest.approx(4.0, rel=1e-4)


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_more_work_of_one_kind_never_takes_less(flops: int, more: int) -> None:
    known = device({"a": ran(10**6, 2e-3)})
    assert seconds(known, op(7), flops) <= seconds(known, op(7), flops + more)


def test_what_decides_the_time_is_in_the_signature() -> None:
    plain = op(8)
    others = [op(9), op(8, "Conv2D"), op(8, dtype="float16"), replace(plain, attributes={"strides": (1, 2)})]
    assert len({signature(spec) for spec in [plain, *others]}) == 5
    assert signature(plain) == "MatMul float32[8] -> float32[8]"


def test_the_later_measurement_holds() -> None:
    first = device({"a": ran(1, 1.0), "b": ran(1, 1.0)}, overhead=1.0)
    merged = first.merged(device({"b": ran(1, 2.0), "c": ran(1, 2.0)}, overhead=2.0))
    assert {name: found.seconds for name, found in merged.ops.items()} == {"a": 1.0, "b": 2.0, "c": 2.0}
    assert merged.overhead_seconds == 2.0


def test_a_device_is_found_by_title_and_else_by_type() -> None:
    first, second = device({}), replace(device({}), title="that")
    costs = MeasuredCosts(versions={}, devices=(first, second))
    assert costs.device("CPU", "that") is second
    assert costs.device("CPU", "unheard of") is first
    assert costs.device("GPU", "that") is None


def test_json_gives_back_what_it_was_given() -> None:
    link = MeasuredLink(between=("CPU", "GPU"), latency_seconds=1e-5, bandwidth_bytes_per_second=1e10)
    costs = MeasuredCosts(versions={"tensorflow": "2"}, devices=(device({"a": ran(1, 1.0)}),), links=(link,))
    assert msgspec.json.decode(msgspec.json.encode(costs), type=MeasuredCosts) == costs


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_seconds_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="MatMul was measured to take"):
        ran(1, wrong)


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="partition-costs/1"):
        MeasuredCosts(versions={}, devices=(), schema="partition-costs/0")
