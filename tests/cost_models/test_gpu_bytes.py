"""Memory of GPUs that TensorFlow allocates from."""

from __future__ import annotations

import pytest

from cost_models.catalogue import catalogue, device_named
from cost_models.memory import gpu_bytes
from tests.benchmarks.gpu_memory import MIG_MIB, PUBLISHED_MIB

MIB = 2**20


@pytest.mark.parametrize("name", [name for name in PUBLISHED_MIB if "MIG" not in name])
def test_published_memory_is_met_within_three_percent(name: str) -> None:
    device = device_named(name)
    assert gpu_bytes(device.memory_bytes, device.compute_capability) == pytest.approx(
        PUBLISHED_MIB[name] * MIB, rel=0.03
    )


def test_a_slice_of_a_gpu_is_met_within_three_percent() -> None:
    assert gpu_bytes(MIG_MIB * MIB, 8.0) == pytest.approx(PUBLISHED_MIB["A100 MIG 3g.20gb"] * MIB, rel=0.03)


@pytest.mark.parametrize(
    ("capability", "kept_back"), [(3.5, 500), (6.1, 500), (7.5, 1050), (8.9, 1536), (9.0, 1800), (12.0, 1800)]
)
def test_tensorflow_keeps_back_by_compute_capability(capability: float, kept_back: int) -> None:
    free = 10_000 * MIB - 330 * MIB - int(0.0105 * 10_000 * MIB)
    assert gpu_bytes(10_000 * MIB, capability) == free - kept_back * MIB


def test_little_is_kept_back_of_a_small_gpu() -> None:
    free = 2048 * MIB - 330 * MIB - int(0.0105 * 2048 * MIB)
    assert gpu_bytes(2048 * MIB, 6.1) == free - 225 * MIB
    assert gpu_bytes(100 * MIB, 6.1) == 0


def test_a_cautious_share_where_only_the_size_is_known() -> None:
    assert gpu_bytes(1_000_000, 0) == 940_000


def test_every_gpu_with_cuda_says_its_compute_capability() -> None:
    without = {name for name, device in catalogue().devices.items() if not device.compute_capability}
    assert not {name for name in without if "NVIDIA" in catalogue().devices[name].title}
