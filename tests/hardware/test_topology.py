"""Devices, sizes and links as people type them, and where each number comes from."""

from __future__ import annotations

import pytest

from cost_models.catalogue import catalogue
from cost_models.memory import unfragmented_bytes
from partitioner.errors import UsageError
from partitioner.hardware.topology import PresentGpu, build_topology, parse_bytes
from partitioner.ir.devices import parse_devices
from partitioner.ir.plan import Origin
from partitioner.spelling import argument, as_python


def short(text: str | list[str]) -> list[str]:
    return [name.short for name in parse_devices(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("GPU:0", ["GPU:0"]),
        ("gpu:0, /GPU:1", ["GPU:0", "GPU:1"]),
        ("GPU:0-3", ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]),
        ("GPU:2-2,CPU:0", ["GPU:2", "CPU:0"]),
        ("/job:worker/task:1/GPU:0-1", ["/job:worker/task:1/GPU:0", "/job:worker/task:1/GPU:1"]),
        (["CPU:0", "GPU:0-1"], ["CPU:0", "GPU:0", "GPU:1"]),
    ],
)
def test_lists_and_ranges(text: str | list[str], names: list[str]) -> None:
    assert short(text) == names


def test_all_problems_of_a_list_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        parse_devices("GPU:0,GPU:3-1,,TPU:0,GPU,GPU:0")
    assert raised.value.message == "5 of the devices are wrong"
    assert raised.value.notes == (
        "'GPU:3-1' is an empty range: 1 comes before 3",
        "an empty name between two commas",
        "'TPU:0' has the device type 'TPU'; expected CPU or GPU",
        "'GPU' is not a device; expected TYPE:INDEX, e.g. GPU:0 or CPU:1",
        "GPU:0 is listed twice",
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8g", 8 * 2**30),
        ("500MB", 500 * 10**6),
        ("1.5 KiB", 1536),
        ("2m", 2 * 2**20),
        ("4096", 4096),
        ("512B", 512),
        (1e6, 10**6),
        (4096, 4096),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str | float, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "0", "-1GiB", "1.2.3GiB", "8GiBs", 0, -5, "8 G i B"])
def test_no_sizes(text: str | float) -> None:
    with pytest.raises(UsageError, match="is not a memory size"):
        parse_bytes(text)


def limits(memory_limit, devices: str = "GPU:0-2") -> list[int]:
    topology, infos = build_topology(parse_devices(devices), memory_limit=memory_limit)
    assert [info.memory_bytes for info in infos] == [placed.memory_bytes for placed in topology.devices]
    return [info.memory_bytes for info in infos]


def test_limits() -> None:
    allocator_bytes = 40_960 * 2**20 - 330 * 2**20 - int(0.0105 * 40_960 * 2**20) - 1536 * 2**20
    usable = int(0.985 * allocator_bytes)
    assert limits(None) == [usable] * 3
    assert limits("1GiB") == [2**30] * 3
    assert limits(2**20) == [2**20] * 3
    assert limits("GPU:0=1GiB,GPU:2=2GiB") == [2**30, usable, 2 * 2**30]
    assert limits({"GPU:1": "4KiB"}) == [usable, 4096, usable]
    assert limits({"GPU:1-2": 4096}) == [usable, 4096, 4096]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("GPU:7=1GiB", f"{as_python(argument('memory_limit'))} names GPU:7, which is not among the devices"),
        (
            "GPU:7=1GiB,GPU:8=1GiB",
            f"{as_python(argument('memory_limit'))} names GPU:7, GPU:8, which are not among the devices",
        ),
        ("GPU:0=1GiB,GPU:1", "'' is not a memory size"),
        ({"GPU": 1}, "1 of the devices is wrong"),
    ],
)
def test_wrong_limits(limit, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        limits(limit)
    assert raised.value.message == message


def hardware(devices: str, **options) -> list[tuple[str, Origin]]:
    _, infos = build_topology(parse_devices(devices), **options)
    return [(info.hardware, info.origin) for info in infos]


def test_origins() -> None:
    gpu = parse_devices("GPU:0")[0].canonical
    assert hardware("GPU:0") == [("a100-40gb", Origin.ASSUMED)]
    assert hardware("GPU:0", hardware="a100-80gb") == [("a100-80gb", Origin.CATALOGUE)]
    assert hardware("CPU:0") == [("cpu-core", Origin.ASSUMED)]
    assert hardware("CPU:0,GPU:0", hardware="a100-80gb") == [
        ("cpu-core", Origin.ASSUMED),
        ("a100-80gb", Origin.CATALOGUE),
    ]
    assert hardware("GPU:0", present={gpu: PresentGpu(title="NVIDIA A100-SXM4-80GB")}) == [
        ("a100-80gb", Origin.CATALOGUE)
    ]
    assert hardware("GPU:0", present={gpu: PresentGpu(title="Frobnicator 9000")}) == [
        ("frobnicator-9000", Origin.ASSUMED)
    ]


def test_memory_of_a_gpu_that_is_here_follows_from_what_tensorflow_allocates_from() -> None:
    gpu = parse_devices("GPU:0")[0].canonical
    here = PresentGpu(title="NVIDIA A100-SXM4-40GB MIG 3g.20gb", memory_bytes=18_211 * 2**20)
    topology, _ = build_topology(parse_devices("GPU:0"), present={gpu: here})
    assert topology.devices[0].memory_bytes == unfragmented_bytes(18_211 * 2**20)
    topology, _ = build_topology(parse_devices("GPU:0"), present={gpu: here}, memory_limit="1GiB")
    assert topology.devices[0].memory_bytes == 2**30


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Tesla T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100-pcie"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-32gb-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),  # not an l4
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("AMD Instinct MI300X", "mi300x"),
        # They only resemble one.
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 2080 Ti with Max-Q Design", None),
        ("NVIDIA GeForce GTX 1080 Ti", None),
        ("NVIDIA RTX A2000", None),
        ("GRID A100-40C", None),
    ],
)
def test_what_drivers_call_a_gpu(title: str, name: str | None) -> None:
    gpu = parse_devices("GPU:0")[0].canonical
    ((hardware_name, origin),) = hardware("GPU:0", present={gpu: PresentGpu(title=title)})
    assert origin == (Origin.ASSUMED if name is None else Origin.CATALOGUE)
    assert hardware_name == name if name else hardware_name not in catalogue().devices


def test_unknown_hardware_and_links_come_with_suggestions() -> None:
    with pytest.raises(UsageError, match="unknown hardware 'a100-80g'; did you mean a100-80gb"):
        hardware("GPU:0", hardware="a100-80g")
    with pytest.raises(UsageError, match="unknown link 'nvlnk3'; did you mean nvlink3"):
        hardware("GPU:0", link="nvlnk3")


def test_links() -> None:
    names = parse_devices("GPU:0,GPU:1,CPU:0,CPU:1,/job:worker/task:1/GPU:0")
    topology, _ = build_topology(names)
    assert topology.link(0, 1).name == "pcie4"
    assert topology.link(0, 2).name == "pcie4"
    assert topology.link(2, 3).name == "shared-memory"
    assert topology.link(0, 4).name == "ethernet-25g"
    topology, _ = build_topology(names, link="nvlink3")
    assert (topology.link(0, 1).name, topology.link(0, 4).name) == ("nvlink3", "ethernet-25g")


def test_cpu_devices_of_one_host_share_its_memory() -> None:
    alone, four = limits(None, "CPU:0"), limits(None, "CPU:0-3")
    assert four == [alone[0] // 4] * 4
