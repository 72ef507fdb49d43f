"""Ops that run functions, against sums done by hand."""

from __future__ import annotations

import pytest

from cost_models.flops import op_cost
from cost_models.hardware import Device
from cost_models.roofline import op_seconds
from cost_models.specs import FunctionRun, OpCost, OpSpec, TensorSpec

# A second per FLOP of float32, half of one per FLOP of float16, one per 1000 bytes.
TOY = Device(
    name="toy",
    title="Toy",
    peak_flops={"float32": 1.0, "float16": 2.0},
    memory_bytes=1000,
    memory_bandwidth_bytes_per_second=1000.0,
    launch_overhead_seconds=0.25,
    source="a test",
    date="2025-01",
)


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def relu(elements: int, dtype: str = "float32") -> OpSpec:
    one = tensor(elements, dtype=dtype)
    return OpSpec(type="Relu", inputs=(one,), outputs=(one,))


LESS = OpSpec(
    type="Less", inputs=(tensor(dtype="int32"), tensor(dtype="int32")), outputs=(TensorSpec(shape=(), dtype="bool"),)
)
IDENTITY = OpSpec(type="Identity", inputs=(tensor(9),), outputs=(tensor(9),))


def loop(trips: int, *body: OpSpec) -> OpSpec:
    return OpSpec(
        type="While",
        inputs=(tensor(100),),
        outputs=(tensor(100),),
        runs=(FunctionRun(ops=(LESS,), times=trips + 1), FunctionRun(ops=body, times=trips)),
    )


def test_a_loop_runs_its_body_in_every_trip_and_its_condition_once_more() -> None:
    cost = op_cost(loop(5, relu(10), IDENTITY))
    assert cost.flops == 6 * 1 + 5 * 10
    assert cost.read_bytes == 6 * 8 + 5 * 40  # not the 400 bytes that it hands over
    assert cost.written_bytes == 6 * 1 + 5 * 40
    assert cost.costed


def test_a_loop_in_a_loop_multiplies() -> None:
    inner = loop(3, relu(10))
    cost = op_cost(loop(5, inner))
    assert cost.flops == 6 + 5 * (4 + 3 * 10)
    assert op_seconds(cost, TOY, "float32") == pytest.approx(6 * 1.25 + 5 * (4 * 1.25 + 3 * 10.25))


def test_every_op_in_a_loop_is_launched_and_takes_its_own_time() -> None:
    seconds = op_seconds(op_cost(loop(5, relu(10), relu(20, "float16"), IDENTITY)), TOY, "float32")
    # Per trip 10 FLOPs of float32 and 20 of float16 at twice the rate; the identity starts nothing.
    assert seconds == pytest.approx(6 * (1 + 0.25) + 5 * (10 + 0.25 + 10 + 0.25))


def test_a_loop_without_trips_costs_its_condition() -> None:
    assert op_cost(loop(0, relu(10))).flops == 1


def test_a_call_costs_what_it_calls() -> None:
    call = OpSpec(type="StatefulPartitionedCall", runs=(FunctionRun(ops=(relu(10), relu(7))),))
    assert op_cost(call).flops == 17


@pytest.mark.parametrize("op_type", ["If", "StatelessIf", "Case", "StatelessCase"])
def test_of_branches_the_dearest_counts(op_type: str) -> None:
    branches = (FunctionRun(ops=(relu(10),)), FunctionRun(ops=(relu(30),)), FunctionRun(ops=()))
    assert op_cost(OpSpec(type=op_type, runs=branches)).flops == 30
    assert op_cost(OpSpec(type=op_type, runs=branches[2:])) == OpCost()


def test_an_unknown_op_in_a_loop_keeps_its_bytes_and_is_told() -> None:
    strange = OpSpec(type="MyOwnKernel", inputs=(tensor(10),), outputs=(tensor(5),))
    cost = op_cost(loop(4, strange, relu(10)))
    assert not cost.costed
    assert cost.read_bytes == 5 * 8 + 4 * (40 + 40)
    assert {part.type for part in cost.parts if not part.cost.costed} == {"MyOwnKernel"}


def test_a_function_runs_no_negative_number_of_times() -> None:
    with pytest.raises(ValueError, match="-1 times"):
        FunctionRun(ops=(), times=-1)
    with pytest.raises(ValueError, match="cannot hold -1 bytes"):
        FunctionRun(ops=(), held_bytes=-1)


def test_lists_of_tensors_have_the_size_of_what_is_in_them() -> None:
    held = TensorSpec(shape=(), dtype="variant", content_bytes=48)
    one = TensorSpec(shape=(), dtype="variant", content_bytes=12)
    assert held.size_bytes == 48
    zeros = op_cost(OpSpec(type="ZerosLike", inputs=(held,), outputs=(held,)))
    assert (zeros.read_bytes, zeros.written_bytes) == (0, 48)
    # Only the 12 bytes that both hold are added.
    added = op_cost(OpSpec(type="AddN", inputs=(held, one), outputs=(held,)))
    assert (added.read_bytes, added.written_bytes) == (24, 12)
    with pytest.raises(ValueError, match="-1 bytes"):
        TensorSpec(shape=(), dtype="variant", content_bytes=-1)
