"""What calls of stage programs cost, by hand: seconds with dispatch, bytes while they run and afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import Builder, cut_up, on, pipeline, topology

from cost_models.calls import CallCost
from partitioner.ir.costed import CostedGraph
from partitioner.planner.simulate.program_costs import OP_SECONDS, ProgramCost, StageCosts

CALL_SECONDS = CallCost().seconds


def costs_of(costed: CostedGraph, **places: int) -> dict[str, ProgramCost]:
    """Costs by kind and stage, `forward0`."""
    programs = cut_up(costed, on(costed, **places))
    costs = StageCosts(costed).all(programs)
    return {f"{p.kind}{p.stage}": cost for p, cost in zip(programs.programs, costs, strict=True)}


def second_half() -> dict[str, int]:
    return {f"{kind}1": 1 for kind in "rfdbu"}


def test_seconds_are_those_of_the_ops_and_of_dispatch() -> None:
    costs = costs_of(pipeline(2, forward=1.0, backward=2.0).costed(), **second_half())
    assert costs["forward0"].seconds == pytest.approx(1.0 + CALL_SECONDS + OP_SECONDS, rel=1e-12)
    assert costs["backward1"].seconds == pytest.approx(2.0 + CALL_SECONDS + 2 * OP_SECONDS, rel=1e-12)


def test_what_a_device_takes_to_launch_an_op_covers_its_dispatch() -> None:
    costed = pipeline(1, forward=1.0).costed(topology(1))
    slow = replace(costed.topology.devices[0].device, launch_overhead_seconds=1e-3)
    placed = replace(costed.topology.devices[0], device=slow)
    costed = replace(costed, topology=replace(costed.topology, devices=(placed,)))
    # Of a single stage the program has both, an op of 1 s and one of 2 s.
    assert costs_of(costed)["forward0"].seconds == pytest.approx(3.002 + CALL_SECONDS, rel=1e-12)


def test_a_measured_call_takes_longer_the_more_tensors_it_passes() -> None:
    """`forward1` is given an activation and a parameter, and returns an activation. `backward1` is given two and
    returns two gradients; a total that the one of its parameter is added to comes on top."""
    costed = replace(pipeline(2, forward=1.0, backward=2.0).costed(), sums=("d1:0",))
    few, many = (
        costs_of(replace(costed, measured_calls={1: call}), **second_half())
        for call in (CallCost(seconds=0.25), CallCost(seconds=0.25, tensor_seconds=0.125))
    )
    assert few["forward1"].seconds == pytest.approx(1.0 + 0.25 + OP_SECONDS, rel=1e-12)
    longer = {name: many[name].seconds - few[name].seconds for name in few}
    assert longer["forward1"] == pytest.approx(3 * 0.125, rel=1e-12)
    assert longer["backward1"] == pytest.approx(5 * 0.125, rel=1e-12)
    assert longer["forward0"] == longer["backward0"] == 0.0


def test_a_faster_device_is_faster_but_for_dispatch() -> None:
    costed = pipeline(2, forward=1.0).costed(topology(2, speeds=[1.0, 4.0]))
    assert costs_of(costed, **second_half())["forward1"].seconds == pytest.approx(0.25 + CALL_SECONDS + OP_SECONDS)


def test_bytes_of_a_stage_by_hand() -> None:
    costs = costs_of(pipeline(2).costed(), **second_half())
    # f0 (1024 bytes) crosses to stage 1 and b1 (256) back; d1 is a gradient of 2048.
    assert [costs[name].received_bytes for name in ("forward0", "forward1", "backward1", "backward0")] == [
        0, 1024, 1024, 256,
    ]  # fmt: skip
    assert costs["forward1"].output_bytes == costs["forward1"].left_bytes == 1024
    assert costs["backward1"].output_bytes == costs["backward1"].left_bytes == 2048 + 256


def chain_in_one_program() -> Builder:
    """x -> a (512) -> b (1024) -> c (256), all forward."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    made.add("a", 1.0, "x", size_bytes=512)
    made.add("b", 1.0, "a", size_bytes=1024)
    made.add("c", 1.0, "b", size_bytes=256)
    return made


def test_what_is_made_on_the_way_is_let_go_when_it_was_last_read() -> None:
    cost = costs_of(chain_in_one_program().costed())["forward0"]
    # a and b together are the most; b and c are less; only c is left. The input is not the program's.
    assert (cost.transient_bytes, cost.left_bytes) == (512 + 1024, 256)


def test_what_hands_a_buffer_on_takes_none() -> None:
    made = chain_in_one_program()
    made.add("d", 0.0, "c", size_bytes=256)
    cost = costs_of(made.costed())["forward0"]
    # Nobody outside knows c: the buffer goes by the output that lies in it.
    assert cost.owner == {"d:0": "d:0"}
    assert (cost.transient_bytes, cost.left_bytes) == (512 + 1024, 256)


def test_an_output_may_lie_in_an_input() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    made.add("same", 0.0, "x", size_bytes=256)
    cost = costs_of(made.costed())["forward0"]
    assert cost.owner == {"same:0": "x:0"}
    assert (cost.transient_bytes, cost.left_bytes, cost.output_bytes) == (0, 0, 256)


def test_reads_of_variables_lie_in_the_variable() -> None:
    cost = costs_of(pipeline(1).costed())["once0"]
    assert cost.owner == {"r0:0": None}
    assert (cost.transient_bytes, cost.left_bytes, cost.output_bytes) == (0, 0, 4096)


def test_buffers_are_rounded_up_as_the_allocator_does() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=4)
    made.add("a", 1.0, "x", size_bytes=260)
    assert costs_of(made.costed(topology(1)))["forward0"].left_bytes == 512
    assert costs_of(made.costed(topology(1, kind="CPU")))["forward0"].left_bytes == 320


def test_an_output_is_written_over_an_input_that_nobody_else_reads() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    made.add("a", 1.0, "x", size_bytes=1024, type="MatMul")
    made.add("b", 1.0, "a", size_bytes=1024, type="Tanh")
    made.add("c", 1.0, "b", size_bytes=1024, type="MatMul")
    made.add("d", 1.0, "c", "b", size_bytes=256, type="MatMul")
    # b over a; c and b beside each other, and d beside both. A matrix product is never written over what it reads.
    cost = costs_of(made.costed())["forward0"]
    assert (cost.transient_bytes, cost.left_bytes) == (2 * 1024 + 256, 256)


def test_what_the_caller_gave_is_not_written_over() -> None:
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    made.add("a", 1.0, "x", size_bytes=256, type="Tanh")
    assert costs_of(made.costed())["forward0"].transient_bytes == 256


def gradients_that_wait() -> Builder:
    """Two gradients g (1024 bytes each), each read by w (256 bytes), which nobody waits for; x goes on to the next."""
    made = Builder()
    made.add("x0", 0.0, type="Placeholder", size_bytes=256)
    before = "x0"
    for index in (1, 2):
        made.add(f"g{index}", 1.0, before, size_bytes=1024, type="MatMul")
        made.add(f"w{index}", 1.0, f"g{index}", size_bytes=256, type="MatMul")
        made.add(f"x{index}", 1.0, f"g{index}", size_bytes=256, type="MatMul")
        before = f"x{index}"
    return made


def test_on_a_cpu_what_nobody_waits_for_may_come_last_and_keep_alive_what_it_reads() -> None:
    costed = {kind: gradients_that_wait().costed(topology(1, kind=kind)) for kind in ("CPU", "GPU")}
    # w2 runs beside x2 and g2 while w1, still to come, keeps g1; on a GPU w1 has run, and g1 is gone.
    scratch_bytes = 10 * 1024  # of the product that runs, by oneDNN
    assert costs_of(costed["CPU"])["forward0"].transient_bytes == 2 * 1024 + 2 * 256 + scratch_bytes
    assert costs_of(costed["GPU"])["forward0"].transient_bytes == 1024 + 3 * 256
