"""What kernels take for themselves, against copies counted by hand and seen with TensorFlow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.scratch import Kernels, scratch_bytes, workspace_bytes
from cost_models.specs import FunctionRun, OpSpec, TensorSpec

EIGEN = Kernels(onednn=False, intra_op_threads=2)


def op(
    kind: str, *inputs: tuple[int, ...], output: tuple[int, ...], dtype: str = "float32", **attributes: str
) -> OpSpec:
    return OpSpec(
        type=kind,
        inputs=tuple(TensorSpec(shape=shape, dtype=dtype) for shape in inputs),
        outputs=(TensorSpec(shape=output, dtype=dtype),),
        attributes=attributes,
    )


@pytest.mark.parametrize(
    ("equation", "shapes", "output", "elements"),
    [
        # Attention scores: heads (c) lie behind positions in both operands, so both are copied.
        ("abcd,aecd->acbe", [(16, 64, 6, 32), (16, 64, 6, 32)], (16, 6, 64, 64), 2 * 16 * 64 * 6 * 32),
        # Attention: the scores lie as they should; values are copied, and so is the product.
        ("acbe,aecd->abcd", [(16, 6, 64, 64), (16, 64, 6, 32)], (16, 64, 6, 32), 2 * 16 * 64 * 6 * 32),
        # A matrix product, and one with the second matrix the other way round.
        ("ab,bc->ac", [(8, 16), (16, 4)], (8, 4), 0),
        ("ab,cb->ac", [(8, 16), (4, 16)], (8, 4), 0),
        ("ab,bc->ca", [(8, 16), (16, 4)], (4, 8), 4 * 8),
        # An axis of length one may lie anywhere.
        ("abcd,aecd->acbe", [(16, 64, 1, 32), (16, 64, 1, 32)], (16, 1, 64, 64), 0),
    ],
)
def test_einsums_copy_operands_whose_axes_lie_otherwise(
    equation: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], elements: int
) -> None:
    assert scratch_bytes(op("Einsum", *shapes, output=output, equation=equation), "GPU") == 4 * elements


def test_pooling_on_a_cpu_leaves_a_byte_per_output() -> None:
    pooled = op("MaxPool", (32, 48, 48, 32), output=(32, 24, 24, 32))
    assert workspace_bytes(pooled, "CPU") == 589_824  # as allocated by TensorFlow 2.21
    assert workspace_bytes(pooled, "GPU") == 0
    assert workspace_bytes(op("AvgPool", (32, 48, 48, 32), output=(32, 24, 24, 32)), "CPU") == 0


def test_products_on_a_cpu_take_a_scratchpad() -> None:
    product = op("MatMul", (8, 16), (16, 4), output=(8, 4))
    assert scratch_bytes(product, "CPU") >= 9088  # the most that was seen
    assert scratch_bytes(product, "GPU") == scratch_bytes(op("Relu", (8, 16), output=(8, 16)), "CPU") == 0


def test_gradients_of_convolutions_without_onednn_lay_out_columns() -> None:
    """28 x 28 places of 3 x 3 x 16 are 112,896 numbers, and 142,592 with filter and outputs: 30 MiB hold 55.2 of these.

    A thread is woken for 65,536 numbers, so that the gradient of inputs takes an image at a time with two threads.
    """
    filters = op("Conv2DBackpropFilter", (8, 28, 28, 16), (4,), (8, 28, 28, 32), output=(3, 3, 16, 32))
    inputs = op("Conv2DBackpropInput", (4,), (3, 3, 16, 32), (8, 28, 28, 32), output=(8, 28, 28, 16))
    alone = op("Conv2DBackpropInput", (4,), (3, 3, 16, 32), (1, 28, 28, 32), output=(1, 28, 28, 16))
    one, many = 4 * 112_896, 56 * 4 * 112_896
    assert scratch_bytes(filters, "CPU", EIGEN) == many
    assert scratch_bytes(inputs, "CPU", EIGEN) == one
    assert scratch_bytes(inputs, "CPU", replace(EIGEN, intra_op_threads=4)) == many
    assert scratch_bytes(alone, "CPU", replace(EIGEN, intra_op_threads=4)) == one
    assert scratch_bytes(filters, "CPU") == 10 * 1024


def test_without_onednn_products_and_pooling_take_nothing() -> None:
    assert scratch_bytes(op("MatMul", (8, 16), (16, 4), output=(8, 4)), "CPU", EIGEN) == 0
    assert workspace_bytes(op("MaxPool", (32, 48, 48, 32), output=(32, 24, 24, 32)), "CPU", EIGEN) == 0


@pytest.mark.parametrize("kind", ["MatMul", "BatchMatMulV2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_onednn_products_in_16_bits_are_computed_in_float32(kind: str, dtype: str) -> None:
    """As allocated by TensorFlow 2.21 for 256 rows of 784 numbers and 384 columns."""
    product = op(kind, (256, 784), (784, 384), output=(256, 384), dtype=dtype)
    assert scratch_bytes(product, "CPU", EIGEN) == 802_816 + 1_204_224 + 393_216
    assert scratch_bytes(product, "GPU", EIGEN) == 0


def test_onednn_leaves_products_in_float16_to_tensorflow() -> None:
    """Bug: a perceptron in float16 was predicted to need up to 43 % less than it did where oneDNN's kernels run."""
    half, bfloat = (op("MatMul", (256, 784), (784, 384), output=(256, 384), dtype=t) for t in ("float16", "bfloat16"))
    assert scratch_bytes(half, "CPU", Kernels()) == scratch_bytes(half, "CPU", EIGEN)
    assert scratch_bytes(bfloat, "CPU", Kernels()) < 16 * 1024


@pytest.mark.parametrize("kernels", [EIGEN, Kernels()])
def test_a_gradient_for_groups_of_channels_takes_the_filter_from_all_to_all_twice(kernels: Kernels) -> None:
    """As allocated by TensorFlow 2.21 for the last stage of a ConvNeXtTiny: 7 x 7 places, 768 groups of one channel."""
    filters = op("Conv2DBackpropFilter", (4, 2, 2, 768), (4,), (4, 2, 2, 768), output=(7, 7, 1, 768))
    assert scratch_bytes(filters, "CPU", kernels) == 231_211_008


def test_a_loop_takes_what_its_dearest_function_holds_and_the_scratchpad_in_it() -> None:
    product = op("MatMul", (8, 16), (16, 4), output=(8, 4))
    runs = (FunctionRun(ops=(), times=4, held_bytes=4), FunctionRun(ops=(product,), times=3, held_bytes=1000))
    loop = OpSpec(type="While", runs=runs)
    assert scratch_bytes(loop, "GPU") == 1000
    assert scratch_bytes(loop, "CPU") == 1000 + scratch_bytes(product, "CPU")
    assert scratch_bytes(replace(loop, runs=tuple(replace(run, times=0) for run in runs)), "CPU") == 0
