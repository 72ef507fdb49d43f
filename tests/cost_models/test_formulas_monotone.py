"""No cost shrinks when a tensor grows: in any dimension, in the batch, in the width of its dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalogue import catalogue
from cost_models.flops import known_op_types, op_cost
from cost_models.formulas_functions import cost_of
from cost_models.roofline import op_seconds
from cost_models.specs import FunctionRun, OpCost, OpSpec, TensorSpec

settings.register_profile("costs", deadline=None, derandomize=True, max_examples=20, database=None)
settings.load_profile("costs")

Shape = tuple[int, ...]

# These cost what they run, and nothing by themselves.
RUNNING = {
    *("While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"),
    *("If", "StatelessIf", "Case", "StatelessCase"),
}
# Of one shape, a transposition may move nothing (`test_a_transposition_of_more_costs_more`).
GENERIC = sorted(known_op_types() - RUNNING - {"Einsum", "Transpose"})
DEVICES = [catalogue().devices[name] for name in sorted(catalogue().devices)]
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "int32": "int64", "complex64": "complex128"}

sizes = st.integers(1, 40)


def generic(op_type: str, shape: Shape, dtype: str = "float32") -> OpSpec:
    """An op all of whose tensors have one shape: more of them than any formula looks at."""
    one = TensorSpec(shape=shape, dtype=dtype)
    return OpSpec(type=op_type, inputs=(one,) * 6, outputs=(one,) * 6)


def not_less(small: OpCost, large: OpCost) -> None:
    assert large.flops >= small.flops
    assert large.read_bytes >= small.read_bytes
    assert large.written_bytes >= small.written_bytes


@pytest.mark.parametrize("op_type", GENERIC)
@given(shape=st.tuples(sizes, sizes, sizes, sizes), axis=st.integers(0, 3), more=sizes)
def test_every_op_type_in_every_dimension(op_type: str, shape: Shape, axis: int, more: int) -> None:
    larger = tuple(size + more * (index == axis) for index, size in enumerate(shape))
    small, large = op_cost(generic(op_type, shape)), op_cost(generic(op_type, larger))
    assert small.costed
    not_less(small, large)
    if small.moved_bytes:
        assert large.moved_bytes > small.moved_bytes
    for device in DEVICES[:: len(DEVICES) // 3]:
        assert op_seconds(large, device, "float32") >= op_seconds(small, device, "float32")


@pytest.mark.parametrize("op_type", GENERIC)
def test_every_op_type_in_the_width_of_its_dtype(op_type: str) -> None:
    for narrow, wide in WIDER.items():
        small, large = (op_cost(generic(op_type, (3, 5, 4, 6), dtype)) for dtype in (narrow, wide))
        not_less(small, large)
        assert large.moved_bytes == 2 * small.moved_bytes
        assert large.flops == small.flops


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@given(flops=st.integers(0, 10**13), moved=st.integers(1, 10**10))
def test_a_wider_float_never_takes_less_time(device, flops: int, moved: int) -> None:
    """The same arithmetic on tensors twice as wide, at the device's rates."""
    for narrow, wide in (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64")):
        small = op_seconds(OpCost(flops=flops, read_bytes=moved), device, narrow)
        assert op_seconds(OpCost(flops=flops, read_bytes=2 * moved), device, wide) >= small


def matmul(b: int, m: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "BatchMatMulV2", [(b, m, k), (b, k, n)], [(b, m, n)]


def transposed(b: int, m: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "BatchMatMulV2", [(b, k, m), (b, n, k)], [(b, m, n)]


def convolution(b: int, side: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "Conv2D", [(b, side, side, k), (3, 3, k, n)], [(b, side, side, n)]


def depthwise(b: int, side: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "DepthwiseConv2dNative", [(b, side, side, k), (3, 3, k, n)], [(b, side, side, k * n)]


def by_input(b: int, side: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "Conv2DBackpropInput", [(4,), (3, 3, k, n), (b, side, side, n)], [(b, side, side, k)]


def by_kernel(b: int, side: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "Conv2DBackpropFilter", [(b, side, side, k), (4,), (b, side, side, n)], [(3, 3, k, n)]


def einsum(b: int, m: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "Einsum", [(b, m, k), (k, n)], [(b, m, n)]


def summed(b: int, m: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "Sum", [(b, m + 1, n, k), (2,)], [(b, k)]  # over nothing, it is free


def pooled(b: int, m: int, n: int, k: int) -> tuple[str, list[Shape], list[Shape]]:
    return "MaxPool", [(b, 2 * m, 2 * n, k)], [(b, m, n, k)]


@pytest.mark.parametrize(
    "build",
    [matmul, transposed, convolution, depthwise, by_input, by_kernel, einsum, summed, pooled],
    ids=lambda build: build.__name__,
)
@given(st.tuples(sizes, sizes, sizes, sizes), st.integers(0, 3), sizes)
def test_ops_whose_tensors_differ(
    build: Callable[..., tuple[str, list[Shape], list[Shape]]], dims: Shape, axis: int, more: int
) -> None:
    def cost(dims: Sequence[int]) -> OpCost:
        op_type, inputs, outputs = build(*dims)
        return op_cost(
            OpSpec(
                type=op_type,
                inputs=tuple(TensorSpec(shape=shape, dtype="float32") for shape in inputs),
                outputs=tuple(TensorSpec(shape=shape, dtype="float32") for shape in outputs),
                attributes={"equation": "bmk,kn->bmn", "ksize": (1, 2, 2, 1)},
            )
        )

    small, large = cost(dims), cost([size + more * (index == axis) for index, size in enumerate(dims)])
    not_less(small, large)
    assert large.moved_bytes > small.moved_bytes
    assert large.flops > small.flops or small.flops == 0


@given(st.integers(0, 50), st.integers(1, 50), st.sampled_from(GENERIC), sizes)
def test_a_loop_in_its_trips_and_its_body(trips: int, more: int, op_type: str, size: int) -> None:
    def cost(trips: int, size: int) -> OpCost:
        return cost_of([FunctionRun(ops=(generic(op_type, (size, 4, 4, 4)),), times=trips)])

    not_less(cost(trips, size), cost(trips + more, size))
    not_less(cost(trips, size), cost(trips, size + more))
    seconds = [op_seconds(cost(n, size), DEVICES[0], "float32") for n in (trips, trips + more)]
    assert seconds == sorted(seconds)
