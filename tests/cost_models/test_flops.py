"""Every family against arithmetic done by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.flops import known_op_types, op_cost, register
from cost_models.formulas_contraction import einsum_flops
from cost_models.specs import OpCost, OpSpec, TensorSpec


def f32(*shape):
    return TensorSpec(shape=shape, dtype="float32")


def i32(*shape):
    return TensorSpec(shape=shape, dtype="int32")


def c64(*shape):
    return TensorSpec(shape=shape, dtype="complex64")


HANDLE = TensorSpec(shape=(), dtype="resource")


def cost(op_type, inputs, outputs, **attributes):
    return op_cost(OpSpec(type=op_type, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes))


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "flops"),
    [
        ("MatMul", [f32(4, 5), f32(5, 6)], [f32(4, 6)], 2 * 4 * 6 * 5),
        ("MatMul", [f32(5, 4), f32(6, 5)], [f32(4, 6)], 2 * 4 * 6 * 5),  # both transposed
        ("BatchMatMulV2", [f32(2, 3, 4, 5), f32(2, 3, 5, 6)], [f32(2, 3, 4, 6)], 2 * 6 * 4 * 6 * 5),
        (
            "BatchMatMulV2",
            [f32(2, 5, 4), f32(1, 5, 6)],
            [f32(2, 4, 6)],
            2 * 2 * 4 * 6 * 5,
        ),  # adj_x, broadcast
        ("MatMul", [f32(0, 5), f32(5, 6)], [f32(0, 6)], 0),
        # An LSTM of 8 units on 4 features has 4 gates x (4 x 8 + 8 x 8 + 2 x 8) parameters; 5 steps of 3 rows use each.
        ("CudnnRNNV3", [f32(5, 3, 4), f32(1, 3, 8), f32(1, 3, 8), f32(448), i32(3)], [f32(5, 3, 8)], 2 * 448 * 15),
        (
            "CudnnRNNBackpropV3",
            [f32(5, 3, 4), f32(1, 3, 8), f32(1, 3, 8), f32(448), i32(3), f32(5, 3, 8)],
            [f32(5, 3, 4)],
            4 * 448 * 15,
        ),
        # 3 x 3 taps on 16 channels for each of 2 x 4 x 4 x 8 results
        ("Conv2D", [f32(2, 8, 8, 16), f32(3, 3, 16, 8)], [f32(2, 4, 4, 8)], 2 * (2 * 4 * 4 * 8) * 9 * 16),
        (
            "Conv2D",
            [f32(2, 16, 8, 8), f32(3, 3, 16, 8)],
            [f32(2, 8, 4, 4)],
            2 * (2 * 4 * 4 * 8) * 9 * 16,
        ),  # NCHW
        # 4 groups: each result sees 16 / 4 channels
        ("Conv2D", [f32(2, 8, 8, 16), f32(3, 3, 4, 8)], [f32(2, 4, 4, 8)], 2 * (2 * 4 * 4 * 8) * 9 * 4),
        (
            "Conv2DBackpropInput",
            [i32(4), f32(3, 3, 16, 8), f32(2, 4, 4, 8)],
            [f32(2, 8, 8, 16)],
            2 * (2 * 4 * 4 * 8) * 9 * 16,
        ),
        (
            "Conv2DBackpropFilter",
            [f32(2, 8, 8, 16), i32(4), f32(2, 4, 4, 8)],
            [f32(3, 3, 16, 8)],
            2 * (2 * 4 * 4 * 8) * 9 * 16,
        ),
        # 16 channels, 2 results each: 3 x 3 taps of one channel per result
        (
            "DepthwiseConv2dNative",
            [f32(2, 8, 8, 16), f32(3, 3, 16, 2)],
            [f32(2, 8, 8, 32)],
            2 * (2 * 8 * 8 * 32) * 9,
        ),
        (
            "DepthwiseConv2dNativeBackpropInput",
            [i32(4), f32(3, 3, 16, 2), f32(2, 8, 8, 32)],
            [f32(2, 8, 8, 16)],
            2 * (2 * 8 * 8 * 32) * 9,
        ),
        (
            "DepthwiseConv2dNativeBackpropFilter",
            [f32(2, 8, 8, 16), i32(4), f32(2, 8, 8, 32)],
            [f32(3, 3, 16, 2)],
            2 * (2 * 8 * 8 * 32) * 9,
        ),
        ("Conv3D", [f32(1, 4, 4, 4, 2), f32(2, 2, 2, 2, 3)], [f32(1, 3, 3, 3, 3)], 2 * (27 * 3) * 8 * 2),
        (
            "Conv3DBackpropInputV2",
            [i32(5), f32(2, 2, 2, 2, 3), f32(1, 3, 3, 3, 3)],
            [f32(1, 4, 4, 4, 2)],
            2 * (27 * 3) * 8 * 2,
        ),
        (
            "Conv3DBackpropFilterV2",
            [f32(1, 4, 4, 4, 2), i32(5), f32(1, 3, 3, 3, 3)],
            [f32(2, 2, 2, 2, 3)],
            2 * (27 * 3) * 8 * 2,
        ),
        ("AddV2", [f32(4, 1), f32(3)], [f32(4, 3)], 12),
        ("Sigmoid", [f32(10)], [f32(10)], (1 + 8 + 1 + 4) * 10),  # negate, exp, add, divide
        ("RealDiv", [f32(10), f32()], [f32(10)], 40),
        ("SelectV2", [f32(10), f32(), f32(10)], [f32(10)], 10),
        ("Cast", [i32(10)], [f32(10)], 0),
        ("AddN", [f32(10), f32(10), f32(10)], [f32(10)], 2 * 10),
        ("BiasAdd", [f32(4, 8), f32(8)], [f32(4, 8)], 32),
        ("BiasAddGrad", [f32(4, 8)], [f32(8)], 3 * 8),
        ("Sum", [f32(4, 8), i32(1)], [f32(4)], 4 * 7),
        ("Mean", [f32(4, 8), i32(1)], [f32(4)], 4 * 7 + 4),
        ("Max", [f32(1), i32(1)], [f32()], 0),
        ("L2Loss", [f32(10)], [f32()], 20),
        ("ArgMax", [f32(4, 8), i32()], [i32(4)], 4 * 7),
        ("TopKV2", [f32(4, 100), i32()], [f32(4, 8), i32(4, 8)], 4 * 100 * 3),  # log2(8) compares each
        ("Softmax", [f32(4, 10)], [f32(4, 10)], 40 * (1 + 1 + 8 + 1 + 4)),
        ("LogSoftmax", [f32(4, 10)], [f32(4, 10)], 40 * (1 + 1 + 8 + 1 + 1) + 4 * 8),
        (
            "SparseSoftmaxCrossEntropyWithLogits",
            [f32(4, 10), i32(4)],
            [f32(4), f32(4, 10)],
            40 * 15 + 4 * (8 + 2),
        ),
        ("UnsortedSegmentSum", [f32(12, 4), i32(12), i32()], [f32(3, 4)], 48),
        ("ResizeBilinear", [f32(1, 4, 4, 2), i32(2)], [f32(1, 8, 8, 2)], 128 * 3 * 3),
        ("ResizeBilinearGrad", [f32(1, 8, 8, 2), f32(1, 4, 4, 2)], [f32(1, 4, 4, 2)], 128 * 3 * 3),
        ("StatelessRandomUniformV2", [i32(1), i32(1), i32(2), i32()], [f32(7)], 7 * 20),
        ("MatrixInverse", [f32(5, 3, 3)], [f32(5, 3, 3)], 5 * 2 * 27),
        ("MatrixDeterminant", [f32(5, 3, 3)], [f32(5)], 5 * 2 * 9),
        ("Qr", [f32(6, 3)], [f32(6, 3), f32(3, 3)], 4 * 9 * 5),
        ("Svd", [f32(3, 6)], [f32(3), f32(3, 3), f32(3, 6)], 4 * 36 * 3 + 8 * 6 * 9 + 9 * 27),
        ("SparseTensorDenseMatMul", [i32(7, 2), f32(7), i32(2), f32(4, 5)], [f32(4, 5)], 2 * 7 * 5),
        ("RFFT", [f32(3, 8), i32(1)], [c64(3, 5)], 3 * 8 * 3 * 5 // 2),  # log2(8) is 3
        ("FFT2D", [c64(2, 4, 4)], [c64(2, 4, 4)], 5 * 2 * 16 * 4),
        ("Bucketize", [f32(10)], [i32(10)], 80),
    ],
)
def test_flops(op_type, inputs, outputs, flops):
    found = cost(op_type, inputs, outputs)
    assert found.flops == flops
    assert found.costed


def test_a_matrix_product_reads_both_factors_and_writes_the_product():
    found = cost("MatMul", [f32(4, 5), f32(5, 6)], [f32(4, 6)])
    assert (found.read_bytes, found.written_bytes) == (4 * (20 + 30), 4 * 24)


def test_pooling_counts_the_window():
    inputs, outputs = [f32(2, 8, 8, 3)], [f32(2, 4, 4, 3)]
    assert cost("MaxPool", inputs, outputs, ksize=(1, 3, 3, 1)).flops == 96 * 9
    assert cost("MaxPoolV2", [*inputs, i32(4), i32(4)], outputs).flops == 96 * 4  # 8 * 8 / (4 * 4)
    grad = [f32(2, 8, 8, 3), f32(2, 4, 4, 3), f32(2, 4, 4, 3)]
    assert cost("MaxPoolGrad", grad, [f32(2, 8, 8, 3)], ksize=(1, 3, 3, 1)).flops == 96 * (9 + 1)
    assert cost("AvgPoolGrad", [i32(4), f32(2, 4, 4, 3)], inputs, ksize=(1, 3, 3, 1)).flops == 96 * 9 * 2


def test_batch_norm_does_more_in_training():
    inputs = [f32(2, 4, 4, 3), f32(3), f32(3), f32(3), f32(3)]
    outputs = [f32(2, 4, 4, 3), f32(3), f32(3), f32(3), f32(3), f32(0)]
    assert cost("FusedBatchNormV3", inputs, outputs, is_training=True).flops == 96 * 7
    assert cost("FusedBatchNormV3", inputs, outputs, is_training=False).flops == 96 * 3
    grad = cost("FusedBatchNormGradV3", [f32(2, 4, 4, 3), *inputs], [f32(2, 4, 4, 3)], is_training=True)
    assert grad.flops == 96 * 9


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ij,jk->ik", [(4, 5), (5, 6)], 2 * 4 * 5 * 6),
        ("abc,cde->abde", [(2, 3, 4), (4, 5, 6)], 2 * 2 * 3 * 4 * 5 * 6),
        ("aecd,abcd->acbe", [(2, 7, 3, 5), (2, 6, 3, 5)], 2 * (2 * 3 * 6 * 7) * 5),
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (5, 6)], 2 * (2 * 3) * 4 * 6 * 5),
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 1, 5, 6)], 2 * (2 * 3) * 4 * 6 * 5),  # 1 broadcasts to 3
        ("i,j->ij", [(4,), (5,)], 4 * 5),  # nothing is summed
        ("ij->ji", [(4, 5)], 0),
        ("ij->i", [(4, 5)], 4 * 5),
        ("ii->i", [(4, 4)], 0),  # a diagonal
        ("ii->", [(4, 4)], 4),  # a trace
        ("ab,bc->c", [(4, 5), (5, 6)], 4 * 5 + 2 * 5 * 6),  # a is summed before the product
        ("ij,jk->ik", [(4, 0), (0, 6)], 0),
        (" ij , jk -> ik ", [(4, 5), (5, 6)], 2 * 4 * 5 * 6),
    ],
)
def test_einsum(equation, shapes, flops):
    assert einsum_flops(equation, shapes) == flops
    assert cost("Einsum", [f32(*shape) for shape in shapes], [f32()], equation=equation).flops == flops


@pytest.mark.parametrize(
    ("equation", "shapes"), [("ij,jk", [(4, 5), (5, 6)]), ("ij->i", [(4, 5, 6)]), ("ij->i", [(4, 5), (5, 6)])]
)
def test_an_einsum_that_does_not_fit_is_refused(equation, shapes):
    with pytest.raises(ValueError, match="fit"):
        einsum_flops(equation, shapes)


@pytest.mark.parametrize("op_type", ["Reshape", "Identity", "ReadVariableOp", "Const", "Squeeze", "Shape", "NoOp"])
def test_what_copies_nothing_costs_nothing(op_type):
    assert cost(op_type, [f32(10)], [f32(10)]) == OpCost()


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        ((8, 16, 32), (8, 16, 32), False),
        ((8, 1, 32), (1, 8, 32), False),
        ((8, 16, 32), (16, 8, 32), True),
        ((16, 8, 16), (16, 8, 16), True),  # the first axis may have become the last
    ],
)
def test_a_transposition_copies_unless_it_keeps_the_order_of_long_axes(before, after, moves):
    assert (cost("Transpose", [f32(*before), i32(3)], [f32(*after)]) != OpCost()) == moves


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "read", "written"),
    [
        ("Transpose", [f32(4, 5), i32(2)], [f32(5, 4)], 80 + 8, 80),
        ("ConcatV2", [f32(4), f32(6), i32()], [f32(10)], 16 + 24 + 4, 40),
        ("Slice", [f32(1000, 4), i32(2), i32(2)], [f32(3, 4)], 48, 48),  # not the 1000 rows
        ("GatherV2", [f32(1000, 4), i32(3), i32()], [f32(3, 4)], 48 + 12, 48),
        ("ResourceGather", [HANDLE, i32(3)], [f32(3, 4)], 48 + 12, 48),
        ("ZerosLike", [f32(10)], [f32(10)], 0, 40),
        ("Fill", [i32(1), f32()], [f32(10)], 0, 40),
        ("AssignVariableOp", [HANDLE, f32(10)], [], 40, 40),
        ("AssignAddVariableOp", [HANDLE, f32(10)], [], 80, 40),  # the variable and its change
        ("ResourceScatterAdd", [HANDLE, i32(3), f32(3, 4)], [], 12 + 2 * 48, 48),
        ("TensorListStack", [TensorSpec(shape=(), dtype="variant"), i32(1)], [f32(3, 4)], 48, 48),
    ],
)
def test_bytes_of_what_only_moves(op_type, inputs, outputs, read, written):
    found = cost(op_type, inputs, outputs)
    assert (found.read_bytes, found.written_bytes) == (read, written)


def test_vgg16_takes_as_much_as_is_published():
    """15.3 billion multiply-adds in convolutions: He et al., Deep Residual Learning, 2015, section 4.1."""
    flops, size, channels = 0, 224, 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            image, result = f32(1, size, size, channels), f32(1, size, size, width)
            flops += cost("Conv2D", [image, f32(3, 3, channels, width)], [result]).flops
            channels = width
        size //= 2
    assert round(flops / 2e9, 1) == 15.3


def test_an_unknown_op_keeps_its_bytes_and_says_so():
    assert cost("MyOwnKernel", [f32(10)], [f32(5)]) == OpCost(read_bytes=40, written_bytes=20, costed=False)


def test_an_op_that_is_not_what_its_type_takes_is_named_with_its_shapes():
    with pytest.raises(ValueError, match=r"cannot cost Conv2D with input shapes \[\(2, 8, 8, 3\)\]"):
        cost("Conv2D", [f32(2, 8, 8, 3)], [f32(2, 8, 8, 4)])


def test_an_op_type_has_one_formula():
    with pytest.raises(ValueError, match="'MatMul' has a formula already"):
        register("MatMul")(lambda op: OpCost())


# Types found in training steps (tf.gradients, Adam) of keras.applications' ResNet50, MobileNetV2,
# EfficientNetB0, VGG16 and DenseNet121, with Keras 3.15 on TensorFlow 2.21.
IN_KERAS_APPLICATIONS = """
AddN AddV2 AssignAddVariableOp AssignSubVariableOp AssignVariableOp AvgPool AvgPoolGrad BiasAdd BiasAddGrad
Cast ConcatOffset ConcatV2 Const Conv2D Conv2DBackpropFilter Conv2DBackpropInput DepthwiseConv2dNative
DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput ExpandDims Fill FloorDiv FloorMod
GreaterEqual Identity IdentityN MatMul MaxPool MaxPoolGrad Maximum Mean Mul Neg NoOp Pack Pad Placeholder Pow
ReadVariableOp RealDiv Relu Relu6 Relu6Grad ReluGrad Reshape Rsqrt RsqrtGrad SelectV2 ShapeN Sigmoid
SigmoidGrad Slice Softmax SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Squeeze
StatelessRandomGetKeyCounter StatelessRandomUniformV2 StopGradient StridedSlice Sub Sum Tile ZerosLike
"""


def test_every_op_of_the_common_image_models_is_known():
    assert set(IN_KERAS_APPLICATIONS.split()) - known_op_types() == set()


@pytest.mark.parametrize("op_type", ["While", "StatelessIf", "PartitionedCall"])
def test_an_op_that_runs_a_function_is_never_costed_by_its_shape(op_type):
    assert not cost(op_type, [f32(10)], [f32(10)]).costed


sizes = st.integers(min_value=1, max_value=64)


@given(sizes, sizes, sizes, sizes)
def test_a_larger_matrix_product_costs_more(m, n, k, more):
    def product(m, n, k):
        return cost("MatMul", [f32(m, k), f32(k, n)], [f32(m, n)])

    small = product(m, n, k)
    for larger in (product(m + more, n, k), product(m, n + more, k), product(m, n, k + more)):
        assert larger.flops > small.flops
        assert larger.moved_bytes > small.moved_bytes


ONE_INPUT = [
    "Relu",
    "Exp",
    "Softmax",
    "LogSoftmax",
    "L2Loss",
    "MaxPool",
    "AddN",
    "Cumsum",
]


@given(st.sampled_from(ONE_INPUT), st.lists(sizes, min_size=2, max_size=4), st.data())
def test_no_cost_shrinks_when_a_shape_grows(op_type, shape, data):
    axis = data.draw(st.integers(min_value=0, max_value=len(shape) - 1))
    larger = [size + (i == axis) for i, size in enumerate(shape)]
    before, after = (cost(op_type, [f32(*dims)], [f32(*dims)]) for dims in (shape, larger))
    assert after.flops >= before.flops
    assert after.moved_bytes > before.moved_bytes


@given(st.lists(sizes, min_size=2, max_size=4), st.data())
def test_a_transposition_of_more_costs_more(shape, data):
    axis = data.draw(st.integers(min_value=0, max_value=len(shape) - 1))
    larger = [size + (i == axis) for i, size in enumerate(shape)]
    before, after = (cost("Transpose", [f32(*dims)], [f32(*reversed(dims))]) for dims in (shape, larger))
    assert after.moved_bytes >= before.moved_bytes
