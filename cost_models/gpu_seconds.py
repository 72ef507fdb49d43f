"""Seconds of an op on a GPU whose multiprocessors are known: what it reaches of the peaks, by kind of op and shape.

    product, convolution    the slower of its tiles (`gpu_products.py`) and its bytes; or transforms, if faster
    depthwise convolution   the slower of a share of the plain peak and its bytes
    all else                the slower of its FLOPs at the plain peak and its bytes

Bytes go at a share of the peak bandwidth, and every op that does something has a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cost_models.flops import op_cost
from cost_models.gpu_constants import GPU, GpuConstants
from cost_models.gpu_products import CONVOLUTIONS, product_of, product_seconds, tensors_of
from cost_models.gpu_transforms import transformed_seconds
from cost_models.hardware import Device
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpCost, OpSpec, TensorSpec

_HOST_DTYPES = frozenset(("int32", "resource", "string"))
_FEW = 64
_VOLTA, _HOPPER = 7.0, 9.0  # compute capabilities
_CONDITIONALS = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
# How many 16-bit floats are multiplied without tensor cores in the time of a float32, by compute capability; else 1.
# Source: NVIDIA, CUDA C++ Programming Guide, throughput of native arithmetic instructions.
_HALF_RATE = {6.0: 2, 7.0: 2, 7.5: 2, 8.0: 4, 9.0: 2, 10.0: 2}

BATCH_NORMALISATIONS = frozenset(
    f"FusedBatchNorm{gradient}{version}" for gradient in ("", "Grad") for version in ("", "V2", "V3")
)
"""Types of ops that normalise a batch."""


def gpu_op_seconds(
    op: OpSpec,
    cost: OpCost,
    device: Device,
    *,
    compiled: bool = False,
    constants: GpuConstants = GPU,
    kernels: Kernels = ONEDNN,
) -> float:
    """Seconds of an execution of an op, launch included.

    Args:
        op: The op.
        cost: Its FLOPs and bytes.
        device: A GPU with a known number of multiprocessors.
        compiled: Whether XLA compiles the step, which chooses the layout of images itself.
        constants: Shares of peaks.
        kernels: The kernels that TensorFlow chooses, where it is not compiled.
    """
    if (cost.flops == 0 and cost.moved_bytes == 0) or is_on_host(op):
        return 0.0
    if cost.parts:
        return _inner_seconds(op, device, compiled=compiled, constants=constants, kernels=kernels)
    dtype = op.compute_dtype
    moved = cost.moved_bytes + layout_bytes(op, device, compiled=compiled) + second_pass_bytes(op)
    if not compiled:
        moved += normalisation_bytes(op, device, kernels)
    seconds = moved / (device.memory_bandwidth_bytes_per_second * constants.bandwidth_share)
    product = product_of(op)
    if product is not None:
        direct = max(seconds, product_seconds(product, device, dtype, constants))
        seconds = min(direct, transformed_seconds(op, device, constants))
    elif op.type.startswith("Depthwise"):
        seconds = max(seconds, cost.flops / (_depthwise_flops(device, dtype) * constants.depthwise_share))
    else:
        seconds = max(seconds, cost.flops / _vector_flops(device, dtype))
    return seconds + device.launch_overhead_seconds


def _inner_seconds(op: OpSpec, device: Device, *, compiled: bool, constants: GpuConstants, kernels: Kernels) -> float:
    """Of an op that runs functions: all of them, or of a conditional the branch that takes longest."""
    runs = [
        run.times
        * sum(
            gpu_op_seconds(inner, op_cost(inner), device, compiled=compiled, constants=constants, kernels=kernels)
            for inner in run.ops
        )
        for run in op.runs
    ]
    return max(runs) if op.type in _CONDITIONALS else sum(runs)


def _vector_flops(device: Device, dtype: str) -> float:
    """FLOP/s without tensor cores, which do nothing but products."""
    return device.peak_flops_for(dtype) if dtype == "float64" else device.peak_flops["float32"]


def _depthwise_flops(device: Device, dtype: str) -> float:
    """FLOP/s without tensor cores, in the dtype that a depthwise convolution has."""
    times = _HALF_RATE.get(device.compute_capability, 1) if dtype == "float16" else 1
    return times * _vector_flops(device, dtype)


def second_pass_bytes(op: OpSpec) -> int:
    """Bytes that batch normalisation in training reads again: its statistics are known only after a pass over all."""
    return sum(tensor.size_bytes for tensor in _normalised(op, op.inputs))


def normalisation_bytes(op: OpSpec, device: Device, kernels: Kernels) -> int:
    """Bytes that normalising a batch of 16-bit images moves in training, besides those of its passes over them.

    Images of 16 bits have their channels last for tensor cores, and cuDNN's kernels want them first: TensorFlow copies
    what goes in and what comes out. Those kernels take as long for a number of 16 bits as for one of 32.

    Source: fused_batch_norm_op.cc of TensorFlow (fast_nhwc_batch_norm); a profile of ResNet50 in mixed precision on an
    H100 (TensorFlow 2.21): 31 ms of copies, and 39 ms in kernels, which took 20 ms for half as many in float32.
    """
    read, made = _normalised(op, op.inputs), _normalised(op, op.outputs)
    dtype = next((tensor.dtype for tensor in read), "")
    is_spared = dtype == "float16" and kernels.persistent_normalisation
    if dtype not in ("float16", "bfloat16") or is_spared or device.compute_capability < _VOLTA:
        return 0
    copied = 2 * sum(tensor.size_bytes for tensor in (*read, *made))
    as_float32 = 2 * sum(tensor.size_bytes for tensor in read) + sum(tensor.size_bytes for tensor in made)
    return copied + as_float32


def _normalised(op: OpSpec, tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The images among tensors of an op that normalises a batch in training; none of other ops."""
    if op.type not in BATCH_NORMALISATIONS or op.attributes.get("is_training", True) is False:
        return []
    most = max(tensor.num_elements for tensor in op.inputs)
    return [tensor for tensor in tensors if tensor.num_elements == most]


def is_on_host(op: OpSpec) -> bool:
    """Whether TensorFlow computes an op on the host although it belongs to a GPU: a few integers, such as shapes."""
    tensors = [tensor for tensor in (*op.inputs, *op.outputs) if tensor.dtype != "resource"]
    return bool(tensors) and all(t.dtype in ("int32", "int64") and t.num_elements <= _FEW for t in tensors)


def layout_bytes(op: OpSpec, device: Device, *, compiled: bool) -> int:
    """Bytes that a convolution of float32 copies between layouts of images.

    TensorFlow has images of float32 with their channels first, and so has XLA before Hopper. Tensor cores, which
    compute in TF32, take them last: cuDNN copies the images that go in and those that come out.

    Source: generic_layout_optimizer.cc of TensorFlow (channels first, but for mostly 16-bit convolutions);
    layout_assignment.cc of XLA's GPU backend (HeuristicLayoutAssignment); a profile of ResNet50 on an H100
    (TensorFlow 2.21), which has such copies, and compiled none.
    """
    if op.type not in CONVOLUTIONS or op.compute_dtype != "float32":
        return 0
    if device.peak_flops.get("tfloat32", 0.0) <= device.peak_flops["float32"]:
        return 0
    if compiled and device.compute_capability >= _HOPPER:
        return 0
    images, _, results = tensors_of(op)
    return 2 * (images.size_bytes + results.size_bytes)


def fused_seconds(flops: int, moved_bytes: int, launches: int, device: Device, constants: GpuConstants = GPU) -> float:
    """Seconds of ops that a compiler made one kernel, or a few, of.

    Args:
        flops: Floating-point operations of all.
        moved_bytes: Bytes that enter them and leave them.
        launches: Number of kernels.
        device: A GPU with a known number of multiprocessors.
        constants: Shares of peaks.
    """
    moving = moved_bytes / (device.memory_bandwidth_bytes_per_second * constants.bandwidth_share)
    return max(moving, flops / device.peak_flops["float32"]) + launches * device.launch_overhead_seconds


def queued_seconds(seconds: Iterable[float], dispatch_seconds: float) -> float:
    """Seconds until a GPU has run ops that its host starts one after the other.

    The host starts an op every `dispatch_seconds` and does not wait for the GPU; the GPU runs each op once it is
    started and the one before has ended.
    """
    started = ended = 0.0
    for taken in seconds:
        started += dispatch_seconds
        ended = max(started, ended) + taken
    return ended
