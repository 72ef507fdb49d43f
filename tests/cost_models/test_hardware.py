"""The catalogue is complete and speaks up; a topology is what it says."""

import math
import re
from dataclasses import replace

import pytest

from cost_models.hardware import (
    Topology,
    TopologyDevice,
    UnknownHardware,
    catalogue,
    device_named,
    link_named,
    read_catalogue,
)

DEVICES = sorted(catalogue().devices.values(), key=lambda device: device.name)
LINKS = sorted(catalogue().links.values(), key=lambda link: link.name)

DEVICE_TOML = """
[device.toy]
title = "Toy"
peak_flops = { float32 = 1e12 }
memory_bytes = 1000
memory_bandwidth_bytes_per_second = 1e9
launch_overhead_seconds = 0.0
source = "a test"
date = "2025-01"
"""


@pytest.mark.parametrize("entry", [*DEVICES, *LINKS], ids=lambda entry: entry.name)
def test_every_entry_has_a_source_and_a_date(entry):
    assert len(entry.source) > 10
    assert re.fullmatch(r"(20[0-2]\d)-(0[1-9]|1[0-2])", entry.date)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_device_has_rates_and_whole_bytes(device):
    assert {"float32", "float64"} <= device.peak_flops.keys()
    assert isinstance(device.memory_bytes, int)
    assert device.peak_flops["float64"] <= device.peak_flops["float32"]
    assert device.launch_overhead_seconds > 0


@pytest.mark.parametrize("device", [d for d in DEVICES if "tfloat32" in d.peak_flops], ids=lambda d: d.name)
def test_a_tensor_core_is_about_half_as_fast_at_twice_the_bits(device):
    ratio = device.peak_flops["bfloat16"] / device.peak_flops["tfloat32"]
    assert ratio == pytest.approx(2.0, rel=0.05)
    assert device.peak_flops["bfloat16"] == device.peak_flops["float16"]


def test_dense_peaks_of_the_datasheets():
    assert device_named("a100-80gb").peak_flops_for("bfloat16") == 312e12  # 624 with sparsity
    assert device_named("h100-sxm").peak_flops_for("float16") == 989.4e12  # 1,978.9 with sparsity
    assert device_named("v100-16gb").peak_flops_for("float32") == 15.7e12
    assert device_named("t4").peak_flops_for("float16") == 65e12


def test_a_core_is_two_fma_units_of_eight_lanes_at_three_gigahertz():
    core, socket = device_named("cpu-core"), device_named("cpu-socket")
    assert core.peak_flops_for("float32") == 2 * 8 * 2 * 3.0e9
    assert socket.peak_flops_for("float32") == 32 * core.peak_flops_for("float32")
    assert socket.memory_bytes == 32 * core.memory_bytes


def test_float32_runs_as_tf32_where_there_is_tf32():
    assert device_named("a100-40gb").peak_flops_for("float32") == 156e12
    assert device_named("a100-40gb").peak_flops_for("complex64") == 156e12
    assert device_named("v100-16gb").peak_flops_for("bfloat16") == 15.7e12


@pytest.mark.parametrize("dtype", ["int32", "bool", "resource", "string"])
def test_what_is_no_float_runs_at_the_rate_of_float32(dtype):
    assert all(device.peak_flops_for(dtype) == device.peak_flops_for("float32") for device in DEVICES)


def test_a_dtype_without_a_rate_runs_as_what_it_is_converted_to():
    core = device_named("cpu-core")
    assert core.peak_flops_for("bfloat16") == core.peak_flops_for("float16") == core.peak_flops_for("float32")
    assert core.peak_flops_for("complex128") == core.peak_flops_for("float64")
    toy = read_catalogue(DEVICE_TOML).devices["toy"]
    assert toy.peak_flops_for("float64") == 0.5e12
    with pytest.raises(ValueError, match="unknown dtype 'float31'"):
        toy.peak_flops_for("float31")


def test_names_are_found_in_either_case():
    assert device_named("A100-80GB") is device_named("a100-80gb")
    assert link_named("NVLink3").bandwidth_bytes_per_second == 300e9


def test_an_unknown_name_is_answered_with_the_closest():
    with pytest.raises(UnknownHardware) as caught:
        device_named("a100-8gb")
    assert caught.value.close[0] == "a100-80gb"
    assert "did you mean a100-80gb" in str(caught.value)
    assert "rtx-4090" in str(caught.value)
    with pytest.raises(LookupError, match="unknown link 'nvlink9'; did you mean nvlink"):
        link_named("nvlink9")
    with pytest.raises(UnknownHardware, match=r"unknown hardware '\?\?\?' \(known: a10, "):
        device_named("???")


@pytest.mark.parametrize(
    ("line", "replacement", "complaint"),
    [
        ("memory_bytes = 1000", "memory_bytes = -1", "device 'toy': memory_bytes is -1"),
        ("memory_bytes = 1000", "", r"device 'toy': missing keys \['memory_bytes'\]"),
        (
            "memory_bytes = 1000",
            "memory_bytes = 1000\nwatts = 3",
            r"device 'toy': .*unknown keys \['watts'\]",
        ),
        ("= 1e12", "= nan", "device 'toy': peak_flops.float32 is nan"),
        ("float32 = 1e12", "float16 = 1e12", "device 'toy': peak_flops.float32 is None"),
        ("= 1e9", "= inf", "device 'toy': memory_bandwidth_bytes_per_second is inf"),
        ("= 0.0", "= -1e-6", "device 'toy': launch_overhead_seconds is -1e-06"),
        ("= 0.0", '= "0"', "device 'toy': launch_overhead_seconds is '0'"),
        ('"a test"', '" "', "device 'toy': source is ' '"),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(line, replacement, complaint):
    assert line in DEVICE_TOML
    with pytest.raises(ValueError, match=complaint):
        read_catalogue(DEVICE_TOML.replace(line, replacement))


def test_a_wrong_link_is_named_with_its_key():
    text = '[link.rope]\nlatency_seconds = 0\nbandwidth_bytes_per_second = 0\nsource = "x"\ndate = "2025-01"'
    with pytest.raises(ValueError, match="link 'rope': bandwidth_bytes_per_second is 0"):
        read_catalogue(text)


def gpus(count):
    device = device_named("t4")
    return [TopologyDevice(name=f"GPU:{i}", device=device, memory_bytes=1000) for i in range(count)]


def test_a_uniform_topology_joins_all_devices_alike():
    topology = Topology.uniform(gpus(3), link_named("pcie3"))
    assert topology.index("GPU:2") == 2
    assert topology.link(0, 2) is topology.link(2, 1) is link_named("pcie3")
    with pytest.raises(UnknownHardware, match="'GPU:7'"):
        topology.index("GPU:7")


def test_links_may_differ_by_direction():
    up, down = link_named("pcie3"), link_named("pcie4")
    topology = Topology(devices=tuple(gpus(2)), links=((up, up), (down, up)))
    assert topology.link(0, 1) is up
    assert topology.link(1, 0) is down


def test_all_violations_of_a_topology_are_listed():
    first, second = gpus(2)
    with pytest.raises(ValueError) as caught:
        Topology(devices=(first, replace(second, name="GPU:0", memory_bytes=-1)), links=((link_named("pcie3"),),))
    message = str(caught.value)
    assert "links must be 2 x 2, have rows of [1]" in message
    assert "two devices are named 'GPU:0'" in message
    assert "may use -1 bytes" in message
    with pytest.raises(ValueError, match="no devices"):
        Topology.uniform([], link_named("pcie3"))


def test_shared_memory_is_about_latency_only():
    link = link_named("shared-memory")
    assert math.isfinite(link.bandwidth_bytes_per_second)
    assert 10**9 / link.bandwidth_bytes_per_second < link.latency_seconds / 10
