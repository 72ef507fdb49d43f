"""Peaks of devices, as measured by allocation, are in the order and of the size that plans say."""

from __future__ import annotations

import pytest

from tests.benchmarks.pipeline_memory import Peak, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def peaks() -> list[Peak]:
    return measure("dense", 2)


def largest(peaks: list[Peak], schedule: str, recompute: str) -> tuple[int, int]:
    """Predicted and measured bytes of the fullest device."""
    of_way = [peak for peak in peaks if (peak.schedule, peak.recompute) == (schedule, recompute)]
    assert len(of_way) == 2
    return max(peak.predicted_bytes for peak in of_way), max(peak.measured_bytes for peak in of_way)


def test_every_device_holds_what_was_predicted(peaks: list[Peak]) -> None:
    assert len(peaks) == 8
    assert [peak for peak in peaks if not 0.9 <= peak.ratio <= 1.1] == []


def test_1f1b_holds_less_than_gpipe_and_recompute_less_than_both(peaks: list[Peak]) -> None:
    for index in range(2):
        gpipe, one_f_one_b = largest(peaks, "gpipe", "none")[index], largest(peaks, "1f1b", "none")[index]
        assert one_f_one_b < gpipe
        for schedule in ("gpipe", "1f1b"):
            assert largest(peaks, schedule, "all")[index] < one_f_one_b
