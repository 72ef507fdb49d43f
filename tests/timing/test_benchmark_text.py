"""The text of a benchmark."""

from __future__ import annotations

from dataclasses import replace

from partitioner.timing.result import Benchmark, Contender, DevicePeak
from tests.commands import GOLDEN

CPU1, GPU0, GPU1 = (f"/job:localhost/replica:0/task:0/device:{name}" for name in ("CPU:1", "GPU:0", "GPU:1"))
MIB = 2**20

FOUND = Benchmark(
    model="encoder",
    fingerprint="0123456789abcdef",
    batch_size=1024,
    training=True,
    devices={GPU0: GPU0, GPU1: GPU1},
    contenders=(
        Contender(
            name="the plan",
            devices=(GPU0, GPU1),
            predicted_seconds=10e-3,
            round_seconds=(12e-3, 11e-3, 40e-3, 13e-3),
            median_seconds=12e-3,
        ),
        Contender(
            name="one device",
            devices=(GPU0,),
            predicted_seconds=18e-3,
            round_seconds=(24e-3, 25e-3, 26e-3, 23e-3),
            median_seconds=24e-3,
        ),
        Contender(name="MirroredStrategy", reason="not run: 1,024 rows cannot be divided evenly over 3 devices"),
    ),
    memory=(
        DevicePeak(device=GPU0, predicted_bytes=100 * MIB, measured_bytes=120 * MIB),
        DevicePeak(device=GPU1, predicted_bytes=50 * MIB, measured_bytes=None),
    ),
    num_steps=5,
    num_loops=2,
    cores=(2.0, 1.9, 1.2, 1.95),
    disturbed_rounds=(2,),
    versions={"python": "3.11.7"},
)


def test_the_text() -> None:
    assert FOUND.to_text() == (GOLDEN / "benchmark.txt").read_text(encoding="utf-8")


def test_stand_ins_are_named_first_and_rounds_that_were_all_disturbed_loudly() -> None:
    text = replace(FOUND, devices={GPU0: CPU1, GPU1: GPU1}, disturbed_rounds=(0, 1, 2, 3)).to_text()
    assert text.splitlines()[1] == "standing in: CPU:1 for GPU:0; the times are theirs, and say nothing about GPUs"
    assert "step time (median of 4 rounds of 5 steps)" in text
    assert "ALL rounds were disturbed" in text
