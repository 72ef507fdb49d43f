"""The peak of a training step on one device, as measured by allocation, is what the plan says."""

from __future__ import annotations

from tests.benchmarks.memory_fidelity import measure


def test_the_peak_is_as_predicted_and_hardly_under() -> None:
    (peak,) = measure("mlp-384-deep", "train")
    # Parameters and two Adam slots alone: 3 x (784 x 384 + 11 x 384^2 + 384 x 10 + biases) floats.
    assert peak.measured_bytes > 3 * 4 * (784 * 384 + 11 * 384 * 384 + 384 * 10)
    assert 0.99 * peak.measured_bytes <= peak.predicted_bytes <= 1.10 * peak.measured_bytes
