"""Topologies by name and from a file: what they join with what, what may be used, and how they complain."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cost_models.catalogue import catalogue, device_named, link_named
from cost_models.communication import transfer_seconds
from cost_models.memory import gpu_bytes, unfragmented_bytes
from cost_models.network import concurrent_seconds
from cost_models.topology import Topology, TopologyDevice
from partitioner.errors import UsageError
from partitioner.hardware.presets import preset_topology
from partitioner.hardware.resolve import chosen_topology
from partitioner.hardware.topology import build_topology
from partitioner.hardware.topology_file import read_topology
from partitioner.ir.devices import parse_devices
from partitioner.ir.plan import Origin

LAB = """
link = "pcie4"

[[devices]]
names = "GPU:0-1"
hardware = "a100-80gb"
memory = "70GiB"

[[devices]]
names = ["GPU:2", "/job:worker/task:1/GPU:0"]
[devices.hardware]
name = "toy"
peak_flops = { float32 = 1e12, bfloat16 = 4e12 }
memory_bytes = 1_000_000_000
memory_bandwidth_bytes_per_second = 1e11
launch_overhead_seconds = 1e-6

[[links]]
among = "GPU:0-1"
link = "nvlink3"

[[links]]
between = ["GPU:0-1", "GPU:2"]
via = ["pcie4", "pcie3"]

[[links]]
from = "GPU:0-2"
to = "/job:worker/task:1/GPU:0"
link = { latency_seconds = 1e-3, bandwidth_bytes_per_second = 1e9 }

[[uplinks]]
name = "nic"
devices = "GPU:0-2"
link = "ethernet-10g"
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    return path


# By name


def test_one_host_by_name() -> None:
    names, topology, infos = chosen_topology(None, topology="DGX-H100")
    assert [name.short for name in names] == [f"GPU:{i}" for i in range(8)]
    assert {(info.hardware, info.origin) for info in infos} == {("h100-sxm", Origin.CATALOGUE)}
    assert {info.memory_bytes for info in infos} == {unfragmented_bytes(gpu_bytes(81_559 * 2**20, 9.0))}
    assert {topology.link(a, b).name for a in range(8) for b in range(8)} == {"nvswitch3"}


def test_gpus_of_several_hosts_may_be_counted_through() -> None:
    names, topology, _ = chosen_topology("GPU:7-8,GPU:15", topology="2x dgx-h100", hardware="h100-sxm")
    assert [name.short for name in names] == [
        f"/job:worker/task:{task}/GPU:{i}" for task, i in ((0, 7), (1, 0), (1, 7))
    ]
    assert [placed.name for placed in topology.devices] == [name.canonical for name in names]
    with pytest.raises(UsageError, match="the topology has no GPU:16-17\n"):
        chosen_topology("GPU:15-17", topology="2x dgx-h100")


@pytest.mark.parametrize("text", ["2x dgx-h100", "2xdgx-h100", " 2 x dgx-h100 "])
def test_several_hosts_by_name(text: str) -> None:
    topology = preset_topology(text)
    assert topology.devices[9].name == "/job:worker/replica:0/task:1/device:GPU:1"
    assert topology.hosts == (0,) * 8 + (1,) * 8
    assert topology.link(8, 15).name == "nvswitch3"
    # Up to host memory, over the network, and down again.
    hops = [link_named(name) for name in ("pcie5", "infiniband-ndr", "pcie5")]
    assert transfer_seconds(10**9, topology.link(0, 8)) == pytest.approx(sum(transfer_seconds(10**9, h) for h in hops))
    # Eight at once leave over one adapter of 50 GB/s.
    alone = concurrent_seconds(topology, [(0, 8, 1e9)])[0]
    together = concurrent_seconds(topology, [(i, 8 + i, 1e9) for i in range(8)])
    latency = topology.link(0, 8).latency_seconds
    assert max(together) == pytest.approx(latency + 8e9 / 50e9)
    assert alone == pytest.approx(latency + 1e9 / topology.link(0, 8).bandwidth_bytes_per_second)


def test_devices_without_a_way_of_their_own_go_through_host_memory() -> None:
    link = preset_topology("rtx-4090-pc").link(0, 1)
    assert transfer_seconds(10**9, link) == pytest.approx(2 * transfer_seconds(10**9, link_named("pcie4")))


@pytest.mark.parametrize("name", sorted(catalogue().hosts))
def test_every_name_makes_a_topology(name: str) -> None:
    kind = catalogue().hosts[name]
    assert len(preset_topology(name).devices) == kind.num_devices
    assert len(preset_topology(f"3x {name}").devices) == 3 * kind.num_devices


def test_512_devices_are_there_at_once() -> None:
    start = time.monotonic()
    names, topology, infos = chosen_topology(None, topology="64x dgx-h100")
    assert (len(names), len(infos), topology.link(0, 511).name) == (512, 512, "pcie5+infiniband-ndr+pcie5")
    assert time.monotonic() - start < 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dgx-h10", "unknown topology 'dgx-h10'; did you mean dgx-h100"),
        ("4x dgx-a10", "unknown topology 'dgx-a10'; did you mean dgx-a100"),
        ("dgx h100", "unknown topology 'dgx h100'; did you mean dgx-h100"),
        ("0x dgx-h100", "'0x dgx-h100' has 0 devices, expected 1 to 4096"),
        ("9999x dgx-h100", "'9999x dgx-h100' has 79992 devices, expected 1 to 4096"),
    ],
)
def test_wrong_names(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen_topology(None, topology=text)
    assert said in str(caught.value)
    if "unknown" in said:
        assert caught.value.help is not None
        assert caught.value.help.startswith("partition hardware")


# From a file


def test_a_file(lab: Path) -> None:
    names, topology, infos = chosen_topology(None, topology=str(lab))
    assert [name.short for name in names] == ["GPU:0", "GPU:1", "GPU:2", "/job:worker/task:1/GPU:0"]
    assert [(info.hardware, info.origin, info.memory_bytes) for info in infos] == [
        ("a100-80gb", Origin.CATALOGUE, 70 * 2**30),
        ("a100-80gb", Origin.CATALOGUE, 70 * 2**30),
        ("toy", Origin.FILE, 925_900_000),
        ("toy", Origin.FILE, 925_900_000),
    ]
    assert topology.devices[2].device.peak_flops_for("bfloat16") == 4e12
    assert topology.hosts == (0, 0, 0, 1)
    assert topology.link(0, 1).name == topology.link(1, 0).name == "nvlink3"
    assert topology.link(0, 2).name == topology.link(2, 1).name == "pcie4+pcie3"
    assert topology.link(0, 2).latency_seconds == pytest.approx(50e-6)
    assert topology.link(1, 3).bandwidth_bytes_per_second == 1e9
    assert topology.link(3, 1).name == "pcie4"  # no entry joins the other direction
    assert topology.channels(0, 3)["nic out"] == 1.25e9


def test_some_devices_of_a_file_and_limits(lab: Path) -> None:
    names, topology, infos = chosen_topology("GPU:2,GPU:0", topology=lab, memory_limit={"GPU:0": "1GiB"})
    assert [name.short for name in names] == ["GPU:2", "GPU:0"]
    assert [info.memory_bytes for info in infos] == [925_900_000, 2**30]
    assert [placed.memory_bytes for placed in topology.devices] == [925_900_000, 2**30]
    assert topology.link(0, 1).name == "pcie4+pcie3"
    with pytest.raises(UsageError, match="the topology has no GPU:7") as caught:
        chosen_topology("GPU:0,GPU:7", topology=lab)
    assert "devices of the topology: GPU:0-2, /job:worker/task:1/GPU:0" in str(caught.value)


def test_a_later_entry_wins(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(LAB.replace("[[uplinks]]", '[[links]]\nfrom = "GPU:1"\nto = "GPU:0"\nlink = "pcie3"\n[[uplinks]]'))
    topology = read_topology(path)
    assert (topology.link(0, 1).name, topology.link(1, 0).name) == ("nvlink3", "pcie3")


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ('"a100-80gb"', '"a100-80bg"', "[[devices]] number 1", "unknown hardware 'a100-80bg'; did you mean a100-80gb"),
        ('"70GiB"', '"70Gigs"', "[[devices]] number 1", "'70Gigs' is not a memory size"),
        ('names = "GPU:0-1"', 'nmaes = "GPU:0-1"', "[[devices]] number 1", "unknown key 'nmaes'; did you mean names?"),
        ('names = "GPU:0-1"', 'names = "TPU:0"', "[[devices]] number 1", "'TPU:0' has the device type 'TPU'"),
        ('names = "GPU:0-1"', "names = 3", "[[devices]] number 1", "names is 3, expected a list of devices"),
        ('names = "GPU:0-1"', 'names = "GPU:0-2"', "[[devices]] number 2", "names: GPU:2 has an entry already"),
        ('hardware = "a100-80gb"', "", "[[devices]] number 1", "missing key hardware"),
        ("memory_bytes = 1_000", "memory_bytes = -1_000", "[[devices]] number 2", "memory_bytes is -1000000000"),
        ("launch_overhead_seconds = 1e-6", "", "[[devices]] number 2", "missing key launch_overhead_seconds"),
        ("{ float32 = 1e12, ", "{ ", "[[devices]] number 2", "peak_flops.float32 is None"),
        ('link = "nvlink3"', 'link = "nvlnk3"', "[[links]] number 1", "unknown link 'nvlnk3'; did you mean nvlink3"),
        ('link = "nvlink3"', "", "[[links]] number 1", "expected one of the keys link and via"),
        ('link = "nvlink3"', "link = 3", "[[links]] number 1", "link is 3, expected a name or a table of numbers"),
        ('among = "GPU:0-1"', 'amnog = "GPU:0-1"', "[[links]] number 1", "unknown key 'amnog'; did you mean among?"),
        ('among = "GPU:0-1"', "", "[[links]] number 1", "expected the key among, or between, or from and to"),
        (
            'among = "GPU:0-1"',
            'among = "GPU:0,GPU:9"',
            "[[links]] number 1",
            "among: GPU:9 has no entry under [[devices]]",
        ),
        ('["GPU:0-1", "GPU:2"]', '"GPU:0-2"', "[[links]] number 2", "between is 'GPU:0-2', expected two lists"),
        ('via = ["pcie4", "pcie3"]', 'via = "pcie4"', "[[links]] number 2", "via is 'pcie4', expected a list of links"),
        ('via = ["pcie4", "pcie3"]', "via = []", "[[links]] number 2", "a series needs at least one link"),
        ("latency_seconds = 1e-3", "latency_seconds = nan", "[[links]] number 3", "latency_seconds is nan"),
        ('devices = "GPU:0-2"', 'devices = "GPU:5"', "[[uplinks]] number 1", "devices: GPU:5 has no entry"),
        ("1_000_000_000", "0", "[[devices]] number 2", "memory_bytes is 0, expected a finite number above 0"),
        ("1_000_000_000", "16", "[[devices]] number 2", "memory_bytes is 16 bytes, expected 1e+06 to 1e+14"),
        ("float32 = 1e12", "float32 = 19.5", "[[devices]] number 2", "peak_flops.float32 is 19.5 FLOP/s, expected 1e"),
        ("float32 = 1e12", "float32 = true", "[[devices]] number 2", "peak_flops.float32 is True, expected a finite"),
        ("float32 = 1e12", "float31 = 1e12", "[[devices]] number 2", "peak_flops has the unknown dtype 'float31'"),
        ("second = 1e11", "second = inf", "[[devices]] number 2", "memory_bandwidth_bytes_per_second is inf, expected"),
        ("second = 1e11", 'second = "1e11"', "[[devices]] number 2", "memory_bandwidth_bytes_per_second is '1e11'"),
        ("seconds = 1e-6", "seconds = 3.8", "[[devices]] number 2", "launch_overhead_seconds is 3.8 seconds, expected"),
        ("launch_overhead_s", "launch_overheads", "[[devices]] number 2", "did you mean launch_overhead_seconds?"),
        ("seconds = 1e-3", "seconds = 25", "[[links]] number 3", "latency_seconds is 25 seconds, expected 0 to 10"),
        ("second = 1e9", "second = 0", "[[links]] number 3", "bandwidth_bytes_per_second is 0, expected a finite"),
        ("second = 1e9", "second = 450", "[[links]] number 3", "bandwidth_bytes_per_second is 450 bytes per second"),
        ("latency_seconds = 1e-3, ", "", "[[links]] number 3", "link 'of lab.toml': missing key latency_seconds"),
        ('"70GiB"', '"700GiB"', "[[devices]] number 1", "memory is '700GiB', which is more than the 85,899,345,920"),
        ('names = "GPU:0-1"', "names = []", "[[devices]] number 1", "names is [], expected a list of devices"),
        ('among = "GPU:0-1"', 'among = "GPU:0"', "[[links]] number 1", "joins no device with another device"),
        (
            'devices = "GPU:0-2"',
            'devices = "GPU:0-2,/job:worker/task:1/GPU:0"',
            "[[uplinks]] number 1",
            "these are all there are",
        ),
        ('link = "pcie4"\n', "", "", "links: no link joins /job:worker/task:1/GPU:0 to GPU:0 and of 2 more pairs"),
        ("[[uplinks]]", "[[uplink]]", "", "unknown key 'uplink'; did you mean uplinks?"),
        ("[[uplinks]]", "[uplinks]", "", "expected entries [[uplinks]]"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(lab: Path, old: str, new: str, where: str, said: str) -> None:
    assert old in LAB
    lab.write_text(LAB.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        chosen_topology(None, topology=lab)
    assert said in str(caught.value)
    assert f"{lab}{', ' if where else ''}{where}" in str(caught.value)


@pytest.mark.parametrize(("old", "new"), [("[[links]]", "[[links"), ('"nvlink3"', '"nvlink3'), ("1e-6", "1e-6 s")])
def test_a_file_that_is_not_toml_is_told_with_the_line(lab: Path, old: str, new: str) -> None:
    text = LAB.replace(old, new, 1)
    line = 1 + text[: text.index(new)].count("\n")
    lab.write_text(text)
    with pytest.raises(UsageError, match=r"^not TOML: ") as caught:
        chosen_topology(None, topology=lab)
    assert caught.value.where == f"{lab}:{line}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read 'no/such\.toml': No such file"):
        chosen_topology(None, topology="no/such.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not a TOML file"):
        chosen_topology(None, topology=tmp_path / "b.toml")


def test_the_file_in_the_readme(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "cost_models/README.md").read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(readme.split("```toml\n")[1].split("```")[0])
    topology = read_topology(tmp_path / "own.toml")
    assert topology.hosts == (0, 0, 0, 0, 1)
    assert topology.link(0, 3).name == "nvlink3"
    assert topology.link(0, 4).name == topology.link(4, 0).name == "pcie4+ethernet-25g+pcie4"
    placed = topology.devices[4]
    allocator_bytes = gpu_bytes(placed.device.memory_bytes, placed.device.compute_capability)
    assert placed.memory_bytes == unfragmented_bytes(allocator_bytes)


# From Python, and from names


def test_a_topology_made_in_python() -> None:
    placed = [
        TopologyDevice(name=name.canonical, device=device_named("t4"), memory_bytes=1000)
        for name in parse_devices("GPU:0-2")
    ]
    mine = Topology.uniform(placed, link_named("pcie3"))
    names, topology, infos = chosen_topology(["GPU:1", "GPU:2"], topology=mine)
    assert [name.short for name in names] == ["GPU:1", "GPU:2"]
    assert topology.devices == tuple(placed[1:])
    assert [info.origin for info in infos] == [Origin.CATALOGUE] * 2


def test_without_a_topology_the_names_are_looked_up_as_ever() -> None:
    names, topology, infos = chosen_topology("GPU:0-1", hardware="t4", link="pcie3")
    assert (topology, infos) == build_topology(parse_devices("GPU:0-1"), hardware="t4", link="pcie3")
    assert [name.short for name in names] == ["GPU:0", "GPU:1"]
    with pytest.raises(UsageError, match="which devices"):
        chosen_topology(None)


def test_a_topology_leaves_nothing_else_to_say() -> None:
    with pytest.raises(UsageError, match="link='pcie4' would do nothing"):
        chosen_topology(None, topology="dgx-h100", link="pcie4")
    with pytest.raises(UsageError, match="hardware='t4' would do nothing") as caught:
        chosen_topology(None, topology="dgx-h100", hardware="t4")
    assert "its devices: h100-sxm" in str(caught.value)
