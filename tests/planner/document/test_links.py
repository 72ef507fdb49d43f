"""The links that a plan's figures rest on: alike ones together, and where their numbers come from."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cost_models.catalogue import link_named
from cost_models.measured import MeasuredLink
from cost_models.topology import Topology
from partitioner.hardware.resolve import chosen_topology
from partitioner.ir.plan import LinkInfo, Origin
from partitioner.ir.schedule import Send
from partitioner.planner.document.links import MAX_PAIRS, link_infos

GPU = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(8)]


def kinds(infos: tuple[LinkInfo, ...]) -> list[tuple[str, Origin, int]]:
    return [(info.name, info.origin, info.num_pairs) for info in infos]


def send(source: int, target: int, size_bytes: int) -> Send:
    return Send(
        tensor="t", source=GPU[source], target=GPU[target], size_bytes=size_bytes, start_seconds=0, end_seconds=1
    )


def test_a_link_that_was_named_is_the_catalogues() -> None:
    _, topology, _ = chosen_topology("GPU:0-7", hardware="h100-sxm", link="NVLink4")
    (info,) = link_infos(
        topology, [send(0, 1, 100), send(1, 0, 20), send(0, 1, 3)], is_described=False, named="NVLink4"
    )
    catalogue_link = link_named("nvlink4")
    assert (info.name, info.origin, info.num_pairs, info.num_uplinks) == ("nvlink4", Origin.CATALOGUE, 8 * 7, 0)
    assert (info.latency_seconds, info.bandwidth_bytes_per_second) == (catalogue_link.latency_seconds, 450e9)
    assert info.sent_bytes == 123
    assert set(info.pairs) == {(a, b) for a in GPU for b in GPU if a != b}


def test_links_that_nobody_named_are_assumed() -> None:
    _, topology, _ = chosen_topology("GPU:0-1,/job:worker/task:1/GPU:0", hardware="h100-sxm")
    assert kinds(link_infos(topology, [], is_described=False)) == [
        ("pcie4", Origin.ASSUMED, 2),
        ("ethernet-25g", Origin.ASSUMED, 4),
    ]
    _, topology, _ = chosen_topology("GPU:0-1,/job:worker/task:1/GPU:0", hardware="h100-sxm", link="nvlink4")
    assert kinds(link_infos(topology, [], is_described=False, named="nvlink4")) == [
        ("nvlink4", Origin.CATALOGUE, 2),
        ("ethernet-25g", Origin.ASSUMED, 4),
    ]


def test_numbers_of_ones_own_are_of_the_file_and_names_of_the_catalogue(tmp_path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        'link = "pcie4"\n'
        '[[devices]]\nnames = "GPU:0-2"\nhardware = "t4"\n'
        '[[links]]\nfrom = "GPU:0"\nto = "GPU:1"\nvia = ["pcie4", "pcie3"]\n'
        '[[links]]\nfrom = "GPU:1"\nto = "GPU:0"\n'
        'link = { name = "rope", latency_seconds = 1e-3, bandwidth_bytes_per_second = 1e6 }\n'
        '[[uplinks]]\ndevices = "GPU:0"\nlink = "ethernet-10g"\n'
    )
    _, topology, _ = chosen_topology(None, topology=path)
    infos = link_infos(topology, [send(1, 0, 7)], is_described=True)
    assert kinds(infos) == [
        ("pcie4+pcie3", Origin.CATALOGUE, 1),
        ("pcie4", Origin.CATALOGUE, 4),
        ("rope", Origin.FILE, 1),
        ("ethernet-10g", Origin.CATALOGUE, 0),
    ]
    assert [info.num_uplinks for info in infos] == [0, 0, 0, 1]
    assert [info.sent_bytes for info in infos] == [0, 0, 7, 0]


@pytest.mark.parametrize("is_described", [True, False])
def test_links_that_were_measured_say_so(is_described: bool) -> None:
    _, topology, _ = chosen_topology("GPU:0-1", hardware="t4")
    wire = MeasuredLink(between=("GPU", "GPU"), latency_seconds=1e-5, bandwidth_bytes_per_second=1e10).as_link()
    measured = replace(topology, links=((wire, wire), (wire, wire)))
    assert kinds(link_infos(measured, [], is_described=is_described)) == [("measured", Origin.MEASURED, 2)]


def test_512_devices_have_two_kinds_of_links_and_an_uplink() -> None:
    topology: Topology = chosen_topology(None, topology="64x dgx-h100")[1]
    start = time.monotonic()
    infos = link_infos(topology, [], is_described=True)
    assert time.monotonic() - start < 5.0
    assert kinds(infos) == [
        ("nvswitch3", Origin.CATALOGUE, 512 * 7),
        ("pcie5+infiniband-ndr+pcie5", Origin.CATALOGUE, 512 * 504),
        ("infiniband-ndr", Origin.CATALOGUE, 0),
    ]
    assert [len(info.pairs) for info in infos] == [MAX_PAIRS, MAX_PAIRS, 0]
    assert infos[-1].num_uplinks == 64
