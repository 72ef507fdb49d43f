"""Seconds of ops and messages, bytes of buffers: both sides of every bend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalogue import link_named
from cost_models.communication import transfer_seconds
from cost_models.hardware import Device, Link
from cost_models.memory import allocated_bytes
from cost_models.roofline import op_seconds
from cost_models.specs import OpCost

# The ridge is at 10 FLOPs per byte.
TOY = Device(
    name="toy",
    title="Toy",
    peak_flops={"float32": 100.0, "float16": 400.0},
    memory_bytes=1000,
    memory_bandwidth_bytes_per_second=10.0,
    launch_overhead_seconds=0.5,
    source="a test",
    date="2025-01",
)


def test_above_the_ridge_computing_takes_the_time():
    assert op_seconds(OpCost(flops=1000, read_bytes=30, written_bytes=20), TOY, "float32") == 10.0 + 0.5


def test_below_the_ridge_moving_bytes_takes_the_time():
    assert op_seconds(OpCost(flops=100, read_bytes=30, written_bytes=20), TOY, "float32") == 5.0 + 0.5


def test_a_faster_dtype_moves_the_ridge():
    assert op_seconds(OpCost(flops=1000, read_bytes=30), TOY, "float16") == 3.0 + 0.5


def test_what_does_nothing_launches_nothing():
    assert op_seconds(OpCost(), TOY, "float32") == 0.0
    assert op_seconds(OpCost(written_bytes=10), TOY, "int32") == 1.5


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**12))
def test_more_work_never_takes_less_time(flops, read_bytes, more):
    base = op_seconds(OpCost(flops=flops, read_bytes=read_bytes), TOY, "float32")
    assert op_seconds(OpCost(flops=flops + more, read_bytes=read_bytes), TOY, "float32") >= base
    assert op_seconds(OpCost(flops=flops, read_bytes=read_bytes + more), TOY, "float32") >= base


def test_a_message_takes_its_latency_and_its_bytes():
    link = Link(name="rope", latency_seconds=2.0, bandwidth_bytes_per_second=10.0, source="a test", date="2025-01")
    assert transfer_seconds(0, link) == 2.0
    assert transfer_seconds(30, link) == 5.0
    with pytest.raises(ValueError, match="-1 bytes"):
        transfer_seconds(-1, link)


def test_a_gigabyte_over_known_links():
    assert transfer_seconds(10**9, link_named("nvlink4")) == pytest.approx(1 / 450 + 25e-6)
    assert transfer_seconds(10**9, link_named("ethernet-10g")) == pytest.approx(0.8 + 130e-6)


@pytest.mark.parametrize(
    ("size", "kind", "allocated"),
    [(0, "GPU", 0), (1, "GPU", 256), (256, "GPU", 256), (257, "GPU", 512), (1, "CPU", 64), (65, "CPU", 128)],
)
def test_buffers_are_rounded_up(size, kind, allocated):
    assert allocated_bytes(size, kind) == allocated


def test_what_is_no_buffer_is_refused():
    with pytest.raises(ValueError, match="unknown device type 'TPU'; expected CPU or GPU"):
        allocated_bytes(1, "TPU")
    with pytest.raises(ValueError, match="-1 bytes"):
        allocated_bytes(-1, "CPU")
