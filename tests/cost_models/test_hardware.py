"""The catalogue is complete and speaks up; a topology is what it says."""

import math
import re
from dataclasses import replace
from datetime import date

import pytest

from cost_models.catalogue import catalogue, device_named, host_named, link_named, read_catalogue
from cost_models.hardware import UnknownHardware
from cost_models.topology import Topology, TopologyDevice, Uplink

DEVICES = sorted(catalogue().devices.values(), key=lambda device: device.name)
LINKS = sorted(catalogue().links.values(), key=lambda link: link.name)
HOSTS = sorted(catalogue().hosts.values(), key=lambda host: host.name)

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


@pytest.mark.parametrize("entry", [*DEVICES, *LINKS, *HOSTS], ids=lambda entry: entry.name)
def test_every_number_has_a_source_and_a_date(entry):
    told = [(entry.source, entry.date)]
    told += [(entry.launch_source, entry.launch_date)] if entry in DEVICES else []
    told += [(entry.latency_source, entry.latency_date)] if entry in LINKS else []
    for source, month in told:
        assert len(source) > 10
        assert re.fullmatch(r"\d{4}-\d{2}", month)
        assert date(2002, 1, 1) <= date.fromisoformat(f"{month}-01") <= date(2026, 12, 1)


def test_the_catalogue_has_what_people_ask_for():
    for name in (
        *(
            "t4",
            "p100",
            "v100-16gb",
            "v100-32gb",
            "rtx-2080-ti",
            "rtx-3090",
            "rtx-4090",
            "rtx-5090",
            "a10",
            "a10g",
            "a30",
        ),
        *(
            "a40",
            "rtx-a6000",
            "rtx-6000-ada",
            "l4",
            "l40s",
            "a100-40gb",
            "a100-80gb",
            "a100-40gb-pcie",
            "a100-80gb-pcie",
        ),
        *("h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "gh200-96gb", "b200", "gb200", "mi210", "mi250x-gcd"),
        *(
            "mi300x",
            "mi325x",
            "tpu-v3",
            "tpu-v4",
            "tpu-v5e",
            "tpu-v5p",
            "tpu-v6e",
            "cpu-core",
            "cpu-socket",
            "epyc-9654",
        ),
    ):
        assert device_named(name)
    for name in (
        *("pcie3", "pcie4", "pcie5", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvswitch3", "infinity-fabric-mi300"),
        *("tpu-ici-v5p", "ethernet-10g", "ethernet-25g", "ethernet-100g", "ethernet-400g", "infiniband-hdr"),
        *("infiniband-ndr", "shared-memory", "loopback-grpc"),
    ):
        assert link_named(name)
    assert {"dgx-a100", "dgx-h100"} <= catalogue().hosts.keys()


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_device_is_physically_sane(device):
    rates = device.peak_flops
    is_tpu = device.name.startswith("tpu")
    assert rates.keys() <= {"float8", "float16", "bfloat16", "tfloat32", "float32", "float64"}
    assert is_tpu == ("float64" not in rates)
    by_bits = [
        max((rates[name] for name in names if name in rates), default=None)
        for names in (("float8",), ("float16", "bfloat16"), ("tfloat32",), ("float32",), ("float64",))
    ]
    known = [rate for rate in by_bits if rate is not None]
    assert known == sorted(known, reverse=True)  # fewer bits are never slower
    assert 1e10 < rates["float32"] < 1e15
    assert known[0] / known[-1] < 1000
    assert isinstance(device.memory_bytes, int)
    assert 1e9 < device.memory_bytes < 1e12
    assert 1e10 <= device.memory_bandwidth_bytes_per_second <= 1e13
    # FLOPs that fit between two bytes of memory traffic: the ridge of the roofline.
    assert 5 < known[0] / device.memory_bandwidth_bytes_per_second < 1000
    assert 1e-7 < device.launch_overhead_seconds < 1e-4


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_every_link_is_physically_sane(link):
    assert 1e-6 < link.latency_seconds < 1e-3
    if link.name != "shared-memory":  # which copies nothing
        assert 1e9 < link.bandwidth_bytes_per_second < 1e12


def test_newer_links_are_faster():
    for names in (
        ("pcie3", "pcie4", "pcie5", "nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5"),
        ("ethernet-10g", "ethernet-25g", "ethernet-100g", "ethernet-400g"),
        ("infiniband-edr", "infiniband-hdr", "infiniband-ndr"),
        ("nvswitch1", "nvswitch2", "nvswitch3", "nvswitch4"),
    ):
        speeds = [link_named(name).bandwidth_bytes_per_second for name in names]
        assert speeds == sorted(set(speeds))


@pytest.mark.parametrize(
    ("name", "bytes_per_second"),
    [
        ("pcie3", 8e9 * 16 * 128 / 130 / 8),
        ("pcie4", 16e9 * 16 * 128 / 130 / 8),
        ("pcie5", 32e9 * 16 * 128 / 130 / 8),
        ("nvlink1", 4 * 20e9),
        ("nvlink2", 6 * 25e9),
        ("nvlink3", 12 * 25e9),
        ("nvlink4", 18 * 25e9),
        ("nvlink5", 18 * 50e9),
        ("ethernet-100g", 100e9 / 8),
        ("infiniband-ndr", 400e9 / 8),
        ("tpu-ici-v5e", 1600e9 / 8 / 4),
        ("tpu-ici-v5p", 4800e9 / 8 / 6),
    ],
)
def test_link_speeds_from_lanes_and_signal_rates(name, bytes_per_second):
    assert link_named(name).bandwidth_bytes_per_second == pytest.approx(bytes_per_second, rel=1e-4)


@pytest.mark.parametrize("device", [d for d in DEVICES if "tfloat32" in d.peak_flops], ids=lambda d: d.name)
def test_a_tensor_core_is_about_half_as_fast_at_twice_the_bits(device):
    ratio = device.peak_flops["bfloat16"] / device.peak_flops["tfloat32"]
    assert ratio == pytest.approx(2.0, rel=0.05)
    assert device.peak_flops["bfloat16"] == device.peak_flops["float16"]
    if "float8" in device.peak_flops:
        assert device.peak_flops["float8"] / device.peak_flops["float16"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("name", "cores"),
    [("cpu-socket", 32), ("epyc-7763", 64), ("epyc-9654", 96), ("xeon-8380", 40), ("xeon-8480", 56), ("graviton3", 64)],
)
def test_a_socket_is_all_its_cores(name, cores):
    core = device_named("cpu-core" if name == "cpu-socket" else f"{name}-core")
    for dtype in ("float32", "float64", "bfloat16"):
        assert device_named(name).peak_flops_for(dtype) == pytest.approx(cores * core.peak_flops_for(dtype))


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_every_host_is_made_of_what_the_catalogue_has(host):
    assert device_named(host.device)
    assert all(link_named(name) for name in (*host.within, *host.between, *([host.uplink] if host.uplink else [])))
    assert host.num_devices >= 2
    assert host_named(host.name.upper()) is host


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


def test_a_short_float_runs_at_the_rate_that_the_device_states():
    assert device_named("h100-sxm").peak_flops_for("float8_e4m3fn") == 1978.9e12
    assert device_named("a100-80gb").peak_flops_for("float8_e5m2") == 312e12  # as float16
    assert device_named("p100").peak_flops_for("float8_e5m2") == 10.6e12  # as float32
    assert device_named("mi300x").peak_flops_for("float32") == 163.4e12  # no TF32 in TensorFlow on ROCm


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
    with pytest.raises(LookupError, match="unknown link 'nvlink9'; did you mean nvlink"):
        link_named("nvlink9")
    with pytest.raises(UnknownHardware, match=r"^unknown hardware '\?\?\?'$"):  # far too many to list
        device_named("???")
    with pytest.raises(UnknownHardware, match=r"^unknown topology '\?' \(known: dgx-2, dgx-a100, "):
        host_named("?")


@pytest.mark.parametrize(
    ("line", "replacement", "complaint"),
    [
        ("memory_bytes = 1000", "memory_bytes = -1", "device 'toy': memory_bytes is -1"),
        ("memory_bytes = 1000", "", "device 'toy': missing key memory_bytes$"),
        (
            "memory_bytes = 1000",
            "memory_bytes = 1000\nwatts = 3",
            "device 'toy': unknown key 'watts'$",
        ),
        ("= 1e12", "= nan", "device 'toy': peak_flops.float32 is nan"),
        ("float32 = 1e12", "float16 = 1e12", "device 'toy': peak_flops.float32 is None"),
        ("= 1e9", "= inf", "device 'toy': memory_bandwidth_bytes_per_second is inf"),
        ("= 0.0", "= -1e-6", "device 'toy': launch_overhead_seconds is -1e-06"),
        ("= 0.0", '= "0"', "device 'toy': launch_overhead_seconds is '0'"),
        ('"a test"', '" "', "device 'toy': source is ' '"),
        ("= 1e12 }", "= 1e12, flot16 = 2e12 }", "device 'toy': peak_flops has the unknown dtype 'flot16'"),
        ("{ float32 = 1e12 }", "1e12", "device 'toy': peak_flops is 1000000000000.0, expected FLOP/s by dtype"),
        (
            "launch_overhead_seconds = 0.0",
            'launch = ["wait"]',
            r"device 'toy': launch is \('wait',\), expected a list of",
        ),
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


def test_delays_are_added_up_with_their_sources():
    text = (
        DEVICE_TOML.replace("launch_overhead_seconds = 0.0", 'launch = ["a", "b"]')
        + """
[delay.a]
seconds = 2e-6
source = "first"
date = "2020-01"
[delay.b]
seconds = 0.5e-6
source = "second"
date = "2019-01"
"""
    )
    toy = read_catalogue(text).devices["toy"]
    assert (toy.launch_overhead_seconds, toy.launch_source, toy.launch_date) == (2.5e-6, "first; second", "2020-01")


def test_a_wrong_host_is_named_with_its_key():
    text = """
[host.box]
title = "Box"
device = "t4"
num_devices = 0
within = ["pcie3"]
between = ["pcie3"]
source = "x"
date = "2025-01"
"""
    with pytest.raises(ValueError, match="host 'box': num_devices is 0, expected at least 1"):
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


def hosts_of_two(count=2, **options):
    devices = gpus(2 * count)
    return Topology.of_hosts(
        devices,
        [index // 2 for index in range(2 * count)],
        within=link_named("nvlink3"),
        between=link_named("ethernet-25g"),
        **options,
    )


def test_devices_of_one_host_are_joined_otherwise_than_hosts():
    topology = hosts_of_two(3)
    for a in range(6):
        for b in range(6):
            if a != b:
                assert topology.link(a, b).name == ("nvlink3" if a // 2 == b // 2 else "ethernet-25g")
    assert [topology.host(device) for device in range(6)] == [0, 0, 1, 1, 2, 2]
    assert Topology.uniform(gpus(2), link_named("pcie3")).host(1) == 0


def test_what_leaves_some_devices_crosses_their_uplink_and_nothing_else_does():
    nic = Uplink(name="nic", devices=frozenset({0, 1}), link=link_named("ethernet-10g"))
    topology = hosts_of_two(uplinks=[nic])
    assert topology.channels(0, 1) == {(0, 1): 300e9}
    assert topology.channels(1, 2) == {(1, 2): 3.125e9, "nic out": 1.25e9}
    assert topology.channels(3, 0) == {(3, 0): 3.125e9, "nic in": 1.25e9}
    assert topology.channels(2, 3) == {(2, 3): 300e9}


def test_a_subset_keeps_links_hosts_and_uplinks():
    nics = [Uplink(name=f"nic {h}", devices=frozenset({2 * h, 2 * h + 1}), link=link_named("pcie3")) for h in range(3)]
    part = hosts_of_two(3, uplinks=nics).subset([5, 0, 4])
    assert [placed.name for placed in part.devices] == ["GPU:5", "GPU:0", "GPU:4"]
    assert part.hosts == (2, 0, 2)
    assert [part.link(a, b).name for a, b in ((0, 2), (0, 1), (1, 2))] == ["nvlink3", "ethernet-25g", "ethernet-25g"]
    assert {uplink.name: uplink.devices for uplink in part.uplinks} == {"nic 0": {1}, "nic 2": {0, 2}}


def test_violations_of_hosts_and_uplinks_are_listed():
    uplink = Uplink(name="nic", devices=frozenset({7}), link=link_named("pcie3"))
    whole = Topology.uniform(gpus(2), link_named("pcie3"))
    with pytest.raises(ValueError) as caught:
        replace(whole, hosts=(0,), uplinks=(uplink, uplink))
    assert "1 hosts for 2 devices" in str(caught.value)
    assert "two uplinks are named 'nic'" in str(caught.value)
    assert "uplink 'nic' has devices [7] of 2" in str(caught.value)
