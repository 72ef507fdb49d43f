"""The doctor: what it says of a sound machine, and that it names each fault that is put in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from partitioner.cli import main
from partitioner.doctor import examine as doctor
from partitioner.doctor import machine
from partitioner.doctor.examine import examine
from partitioner.doctor.finding import SCHEMA, Finding, Status
from partitioner.doctor.mechanisms import MECHANISMS
from partitioner.emit.pipeline.stage_function import StageFunction
from partitioner.spelling import as_flags

STAGED = [mechanism for mechanism in MECHANISMS if mechanism.name.startswith("1f1b: a loss")]


def by_check(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_a_sound_machine_passes_every_check_and_says_so_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--devices", "CPU:1,CPU:2,CPU:3,CPU:4", "--json", "-q"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["schema"] == SCHEMA
    status = {finding["check"]: finding["status"] for finding in diagnosis["findings"]}
    assert set(status.values()) == {"holds"}
    assert {mechanism.name for mechanism in MECHANISMS} <= status.keys()
    assert diagnosis["versions"]["tensorflow"]


def test_what_takes_more_devices_is_skipped_with_the_number() -> None:
    (mixed,) = (mechanism for mechanism in MECHANISMS if mechanism.least_devices == 4)
    diagnosis = examine("CPU:1,CPU:2", mechanisms=[mixed])
    assert by_check(diagnosis.findings)[mixed.name].status is Status.SKIPPED
    assert by_check(diagnosis.findings)[mixed.name].text == "needs 4 devices, 2 given"


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU is here")
def test_no_gpu_cannot_be_divided(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--devices", "GPU:0-3", "--divide", "-q"]) == 2
    assert capsys.readouterr().err.startswith("error: no GPU can be divided: TensorFlow sees none\n")


def test_a_gpu_that_is_not_there_is_named_and_exits_7(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MECHANISMS", STAGED)
    assert main(["doctor", "--devices", "CPU:1,GPU:0", "-q"]) == 7
    out, err = capsys.readouterr()
    assert "not here: GPU:0" in out
    assert "tensorflow[and-cuda]" in out
    assert "standing in: CPU:2 for GPU:0" in out
    assert err.startswith("error: 1 of ")


def test_a_stage_function_that_returns_a_wrong_dtype_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    call = StageFunction.call

    def call_with_a_wrong_result(self: StageFunction, values: Sequence[Any]) -> list[Any]:
        return [tf.cast(v, tf.float64) if v.dtype == tf.float32 else v for v in call(self, values)]

    monkeypatch.setattr(StageFunction, "call", call_with_a_wrong_result)
    diagnosis = examine("CPU:1,CPU:2", mechanisms=STAGED)
    finding = by_check(diagnosis.findings)[STAGED[0].name]
    assert finding.status is Status.FAILED
    assert "float" in finding.text or "double" in finding.text
    assert "partition doctor --json" in as_flags(finding.advice)


def test_a_profiler_that_records_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "profiled", lambda run: run() or [])
    finding = by_check(examine("CPU:1,CPU:2", mechanisms=()).findings)["profiling"]
    assert finding.status is Status.FAILED
    assert finding.text == "TensorFlow's profiler recorded no op"
