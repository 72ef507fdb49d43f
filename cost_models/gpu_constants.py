"""What GPUs reach of the peaks in their datasheets: at most eight constants, which physics bounds and rows fit.

Each is "fitted" by `python -m tests.benchmarks.calibrate` to step times that others have published for TensorFlow
(`tests/benchmarks/published_gpu.csv`), unless it names another source.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConstants:
    """Shares of peaks, and what they leave out.

    Attributes:
        tensor_core_share: Of the peak of tensor cores, in a product of whole tiles.
        cuda_core_share: Of the peak of float32 without tensor cores, in a product of whole tiles.
        bandwidth_share: Of the peak bandwidth, in ops that move bytes. Copies on an A100 reach 0.9.
        depthwise_share: Of the peak of float32 without tensor cores, in depthwise convolutions, where each multiply-add
            loads its own operands.
        start_depth: Terms of a sum that the start and the end of a tile cost: loads before the first
            multiplication, and stores after the last.
        sum_share: Of a link's bandwidth, in sums of gradients over GPUs.
        dispatch_seconds: For the host to start an op on a GPU, where a step is not compiled. Assumed, below the 18 us
            that follow from ResNeXt-101 in mixed precision on an A100: 7.8 to 8.4 ms for some 440 ops of inference,
            with 1 to 8 images (NVIDIA, DeepLearningExamples, resnext101-32x4d).
    """

    tensor_core_share: float = 0.60
    cuda_core_share: float = 0.77
    bandwidth_share: float = 0.68
    depthwise_share: float = 0.037
    start_depth: float = 48.0
    sum_share: float = 0.45
    dispatch_seconds: float = 10e-6


GPU = GpuConstants()
