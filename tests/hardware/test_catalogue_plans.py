"""Plans for machines that are not here say where their numbers come from, in the report and in plan.json."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from partitioner.cli import main
from partitioner.ir.plan import Origin, PlanDocument
from partitioner.report.placement import to_dot

SMALL = str(Path(__file__).parents[1] / "cli_models/small.py")
NAMED = ("--hardware", "h100-sxm", "--link", "nvlink4")
QUICK = ("--time-limit", "4", "-q")

Run = Callable[..., tuple[PlanDocument, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Plan in an empty directory: the plan, and the report of it."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[PlanDocument, str]:
        keras.backend.clear_session()
        capfd.readouterr()
        assert main([SMALL, *QUICK, *arguments, "--json"]) == 0
        (tmp_path / "shown.json").write_text(capfd.readouterr().out)
        assert main(["show", str(tmp_path / "shown.json"), "--verbose"]) == 0
        return PlanDocument.load(tmp_path / "shown.json"), capfd.readouterr().out

    return run


def section(report: str, title: str) -> list[list[str]]:
    lines = report.split(f"\n{title}\n")[1].split("\n\n\n")[0].splitlines()
    return [line.split() for line in lines]


@pytest.mark.parametrize("dry", [("--devices", "GPU:0-7", "--dry-run"), ("--devices", "GPU:0-3")])
def test_hardware_and_links_that_were_named_are_the_catalogues(run: Run, dry: tuple[str, ...], tmp_path: Path) -> None:
    plan, report = run(*dry, *NAMED)
    count = 8 if "--dry-run" in dry else 4
    assert [(device.hardware, device.origin) for device in plan.devices] == [("h100-sxm", Origin.CATALOGUE)] * count
    (link,) = plan.links
    assert (link.name, link.origin, link.num_pairs) == ("nvlink4", Origin.CATALOGUE, count * (count - 1))
    assert (link.latency_seconds, link.bandwidth_bytes_per_second) == (25e-6, 450e9)
    assert "the estimates rest on catalogue hardware and link figures" in report
    assert "assumed" not in report.split("\nhardware\n")[1].split("\ntraining\n")[0]
    assert ["nvlink4", "catalogue", "25.0", "us", "450", "GB/s", f"{count * (count - 1)}", "pairs"] == next(
        row[:8] for row in section(report, "hardware") if row[:1] == ["nvlink4"]
    )
    written = tmp_path / "small_partitioned/plan.json"
    assert written.exists() == ("--dry-run" not in dry)
    if written.exists():
        raw: dict[str, Any] = json.loads(written.read_text())
        assert [(device["hardware"], device["origin"]) for device in raw["devices"]] == [("h100-sxm", "catalogue")] * 4
        assert [(known["name"], known["origin"]) for known in raw["links"]] == [("nvlink4", "catalogue")]


@pytest.mark.parametrize(
    ("named", "hardware", "link", "said"),
    [
        ((), "assumed", "assumed", "assumed hardware and link figures"),
        (NAMED[:2], "catalogue", "assumed", "catalogue hardware figures and assumed link figures"),
        (NAMED[2:], "assumed", "catalogue", "assumed hardware figures and catalogue link figures"),
    ],
)
def test_what_nobody_named_is_assumed(run: Run, named: tuple[str, ...], hardware: str, link: str, said: str) -> None:
    plan, report = run("--devices", "GPU:0-1", "--dry-run", *named)
    assert {str(device.origin) for device in plan.devices} == {hardware}
    assert [str(known.origin) for known in plan.links] == [link]
    assert f"the estimates rest on {said}" in report


def test_what_a_file_says_in_numbers_is_of_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(
        'link = { name = "rope", latency_seconds = 1e-4, bandwidth_bytes_per_second = 1e9 }\n'
        '[[devices]]\nnames = "GPU:0-1"\n[devices.hardware]\nname = "toy"\npeak_flops = { float32 = 1e12 }\n'
        "memory_bytes = 16e9\nmemory_bandwidth_bytes_per_second = 5e11\nlaunch_overhead_seconds = 4e-6\n"
    )
    plan, report = run("--topology", "lab.toml", "--dry-run")
    assert [(device.hardware, device.origin) for device in plan.devices] == [("toy", Origin.FILE)] * 2
    assert [(link.name, link.origin) for link in plan.links] == [("rope", Origin.FILE)]
    assert "the estimates rest on file hardware and link figures" in report


def test_bytes_over_the_links_are_those_that_stages_send(run: Run) -> None:
    plan, _ = run("--devices", "GPU:0-1", "--dry-run", *NAMED, "--strategy", "layer-split")
    assert sum(link.sent_bytes for link in plan.links) == sum(stage.send_bytes for stage in plan.stages) > 0


def test_planning_for_machines_elsewhere_takes_no_longer_than_for_this_one(run: Run) -> None:
    taken = []
    for arguments in (("--devices", "CPU:0,CPU:1"), ("--devices", "GPU:0-7", *NAMED)):
        start = time.monotonic()
        run(*arguments, "--dry-run", "--no-verify")
        taken.append(time.monotonic() - start)
    assert taken[1] < 2 * taken[0] + 20


def test_512_devices_take_few_lines(run: Run) -> None:
    plan, report = run("--topology", "64x dgx-h100", "--strategy", "single", "--dry-run")
    assert len(plan.devices) == 512
    assert len(report.splitlines()) < 80
    assert "/job:worker/task:0-63/GPU:0-7" in report
    rows = {row[1]: row for row in section(report, "hardware") if "h100-sxm" in row}
    assert len(rows) <= 3
    assert [(link.name, link.num_pairs, link.num_uplinks) for link in plan.links] == [
        ("nvswitch3", 512 * 7, 0),
        ("pcie5+infiniband-ndr+pcie5", 512 * 504, 0),
        ("infiniband-ndr", 0, 64),
    ]
    assert "64 shared uplinks" in report


def test_of_many_replicas_that_do_the_same_one_is_told_and_drawn(run: Run) -> None:
    """A plan of 128 replicas of four devices filled more than 8,000 lines."""
    plan, report = run("--devices", "GPU:0-15", *NAMED, "--strategy", "mirrored", "--batch-size", "64", "--dry-run")
    assert plan.num_replicas == 16
    assert len(report.splitlines()) < 80
    assert "stages (estimated, of replica 0 as of all)" in report
    assert "memory at the peak (estimated, of replica 0 as of all)" in report
    assert "replica 15" not in report
    picture = to_dot(plan)
    assert "replica 0 of 16, which are alike" in picture
    assert picture.count("subgraph cluster_device") == 1
