"""`partition hardware` and `--topology`: the catalogue as a table and as JSON, and plans for machines elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cost_models.catalogue import catalogue
from tests.commands import SMALL, Run


def test_the_catalogue_is_printed_with_the_dates_of_its_sources(run: Run) -> None:
    code, out, err = run("hardware")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for entry in (*catalogue().devices.values(), *catalogue().links.values(), *catalogue().hosts.values()):
        assert entry.date in rows[entry.name]
    # Dense TFLOP/s, gigabytes and gigabytes a second of the datasheet.
    assert rows["a100-80gb"].split()[1:6] == ["19.5", "19.5", "156", "312", "312"]
    assert "80 GiB  2,039 GB/s  3.80 us  2021-06, 2019-09  NVIDIA A100 SXM4 80GB" in rows["a100-80gb"]
    assert rows["nvlink4"].split()[1:5] == ["450", "GB/s", "25.0", "us"]
    order = [
        line.split(":")[0].split(",")[0] for line in out.splitlines() if line.startswith(("devices", "links", "hosts"))
    ]
    assert order == ["devices", "links", "hosts"]


def test_the_catalogue_as_json_names_every_source(run: Run) -> None:
    code, out, err = run("hardware", "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    for name in ("devices", "links", "hosts"):
        table = getattr(catalogue(), name)
        assert [entry["name"] for entry in printed[name]] == sorted(table)
        for entry in printed[name]:
            assert entry["source"]
            assert entry == json.loads(json.dumps(asdict(table[entry["name"]])))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hardware", SMALL], f"error: unexpected argument {SMALL!r}"),
        (["hardware", "--devices", "CPU:0"], "unknown option --devices\n   help: partition hardware --help"),
        ([SMALL, "--devices", "GPU:0", "--hardware", "h1000"], "help: partition hardware"),
        ([SMALL, "--devices", "GPU:0", "--link", "nvlink"], "help: partition hardware"),
        ([SMALL, "--topology", "dgx-h10"], "unknown topology 'dgx-h10'; did you mean dgx-h100"),
        ([SMALL, "--topology", "dgx-h10"], "help: partition hardware, or a file: --topology FILE.toml"),
        ([SMALL, "--topology", "my.toml"], "error: cannot read 'my.toml': No such file or directory"),
        ([SMALL, "--topology", "dgx-h100", "--link", "pcie4"], "--link pcie4 would do nothing"),
        ([SMALL, "--topology", "dgx-h100", "--devices", "GPU:8"], "error: the topology has no GPU:8"),
        ([SMALL, "--topology", "dgx-h100", "--memory-limit", "GPU:9=1GiB"], "--memory-limit names GPU:9"),
    ],
)
def test_what_names_nothing_is_told_before_tensorflow_loads(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "loading TensorFlow" not in err


def test_a_plan_for_a_machine_that_is_not_here(run: Run) -> None:
    code, out, _ = run(SMALL, "--topology", "dgx-h100", "--devices", "GPU:2,GPU:5", "--dry-run", "--json", "-q")
    assert code == 0
    devices = json.loads(out)["devices"]
    assert [device["name"][-5:] for device in devices] == ["GPU:2", "GPU:5"]
    assert {(device["hardware"], device["origin"]) for device in devices} == {("h100-sxm", "catalogue")}


def test_a_plan_for_a_machine_of_ones_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(
        'link = "pcie4"\n[[devices]]\nnames = "GPU:0"\nhardware = "t4"\n[[devices]]\nnames = "GPU:1"\nhardware = "l4"\n'
    )
    code, out, _ = run(SMALL, "--topology", "lab.toml", "--dry-run", "--verbose")
    assert code == 0
    assert "t4" in out
    assert "l4" in out
    assert "the estimates rest on catalogue hardware and link figures" in out
