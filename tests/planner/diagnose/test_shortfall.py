"""The error when nothing fits: its numbers, and suggestions that work when tried."""

from __future__ import annotations

import re

import pytest
from graphs import Builder, chain, topology, training_chain

from partitioner.errors import InfeasibleError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import Strategy
from partitioner.planner.diagnose.shortfall import described, with_batch_size
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.layouts.search import search

MIB = 2**20


def refused(costed: CostedGraph, strategy: Strategy = Strategy.AUTO) -> InfeasibleError:
    with pytest.raises(OutOfMemoryError) as raised:
        search(costed, strategy=strategy, time_limit_seconds=5.0)
    assert raised.value.shortfall is not None
    return described(raised.value.shortfall)


def trained(count: int, memory_bytes: int, *, slot_bytes: int = 0, saved_bytes: int = 256) -> CostedGraph:
    """Four layers of 256 MiB of parameters each."""
    made = training_chain(4, parameter_bytes=256 * MIB, slot_bytes=slot_bytes, saved_bytes=saved_bytes)
    return made.costed(topology(count, memory_bytes=memory_bytes))


def test_the_numbers() -> None:
    error = refused(trained(2, 1024 * MIB, slot_bytes=512 * MIB))
    assert error.exit_code == 4
    assert error.message == "the model does not fit on the given devices"
    needs, have, largest = error.notes
    assert needs == "needs    4.0 GiB: parameters 1.0 GiB, gradients 1.0 GiB, slots 2.0 GiB"
    assert have == "have     2.0 GiB: GPU:0 1.0 GiB, GPU:1 1.0 GiB"
    assert re.fullmatch(r"largest part: layer\d 1\.0 GiB", largest)


def test_without_slots_it_would_fit() -> None:
    error = refused(trained(2, 1024 * MIB + MIB, slot_bytes=512 * MIB))
    assert error.help == "step=Step(optimizer='sgd') (-2.0 GiB)"
    search(trained(2, 1024 * MIB + MIB), strategy=Strategy.AUTO, time_limit_seconds=5.0)


def test_a_smaller_batch_would_fit() -> None:
    """Two layers a device: 512 MiB of parameters of 1,100, the rest for gradients and activations."""
    error = refused(trained(2, 1100 * MIB, saved_bytes=512 * MIB))
    assert error.help is not None
    batch_size = int(error.help.removeprefix("batch_size=").split(",")[0])
    assert batch_size in (1, 2, 4)
    saved_bytes = 512 * MIB * batch_size // 8
    search(trained(2, 1100 * MIB, saved_bytes=saved_bytes), strategy=Strategy.AUTO, time_limit_seconds=5.0)


def test_a_part_that_no_device_holds() -> None:
    error = refused(chain([1.0] * 2, [4] * 2, [2048 * MIB, 256]).costed(topology(2, memory_bytes=1024 * MIB)))
    *_, largest = error.notes
    assert re.fullmatch(r"largest part: \S+ 2\.0 GiB, more than any device has; parts cannot be split", largest)


def test_another_strategy_would_do() -> None:
    costed = chain([1.0] * 4, [256] * 4, [256 * MIB] * 4).costed(topology(2, memory_bytes=600 * MIB))
    error = refused(costed, Strategy.SINGLE)
    # Needs 1.0 GiB and has 1.2 GiB: the numbers that were compared are those of one device.
    assert error.notes[2].startswith("closest: GPU:0 would hold 1.0 GiB at its peak and has 600 MiB")
    assert error.help is not None
    assert error.help.startswith("strategy='auto'")


def test_inference_counts_the_activations_of_one_device() -> None:
    error = refused(chain([1.0] * 2, [1024 * MIB, 512 * MIB]).costed(topology(1, memory_bytes=1024 * MIB)))
    assert error.notes[0] == "needs    1.5 GiB: activations 1.5 GiB"


def test_the_batch_size_scales_what_grows_with_the_batch() -> None:
    made = Builder()
    made.variable("w", 64)
    made.add("read", 0.0, size_bytes=64, variables=["w"])
    made.add("a", 1.0, "read", size_bytes=8 * 4 * 3)
    made.add("odd", 1.0, "a", size_bytes=4 * 3)
    smaller = with_batch_size(made.costed(topology(1)), 2).graph
    assert [tensor.size_bytes for tensor in smaller.tensors] == [64, 2 * 4 * 3, 4 * 3]
    assert smaller.batch_size == 2
