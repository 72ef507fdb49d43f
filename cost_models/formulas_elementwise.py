"""Ops that compute each output element from the inputs' elements at the same position."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cost_models.registry import register, streamed
from cost_models.specs import OpCost, OpSpec

# FLOPs per element. The weights are those of the Livermore loops (McMahon, "The Livermore Fortran Kernels: A
# Computer Test of the Numerical Performance Range", UCRL-53745, 1986): 1 for add, subtract, multiply,
# compare; 4 for divide and square root; 8 for exponential, sine and other functions. Choosing, negating,
# rounding and a logical operation count as a compare; converting and copying as nothing. Composites are
# summed in the comment beside them.
FLOPS_PER_ELEMENT: Mapping[int, str] = {
    0: "Cast Complex Real Imag",
    1: "Add AddV2 Sub Mul MulNoNan Neg Abs Sign Square Maximum Minimum Conj"
    " Ceil Floor Round Rint Relu IsFinite IsInf IsNan CheckNumerics"
    " Equal NotEqual ApproximateEqual Less LessEqual Greater GreaterEqual"
    " LogicalAnd LogicalOr LogicalNot BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift"
    " NextAfter Select SelectV2 BiasAdd BiasAddV1",
    2: "SquaredDifference"  # subtract, multiply
    " Relu6 ReluGrad ClipByValue"  # compare twice; compare, choose
    " LeakyRelu LeakyReluGrad",  # multiply, choose
    3: "Relu6Grad"  # compare twice, choose
    " SigmoidGrad TanhGrad"  # dy * y * (1 - y); dy * (1 - y * y)
    " ReciprocalGrad InvGrad"  # -dy * y * y
    " EluGrad SeluGrad",  # compare, add, multiply
    4: "Div DivNoNan RealDiv Reciprocal Inv Sqrt Xdivy RsqrtGrad",  # the last is -dy / 2 * y * y * y
    5: "FloorDiv TruncateDiv FloorMod Mod TruncateMod"  # divide, round (or subtract)
    " SqrtGrad",  # dy / 2 / y
    6: "Softsign",  # x / (1 + |x|)
    7: "SoftsignGrad"  # dy / (1 + |x|)**2
    " ComplexAbs",  # sqrt(re * re + im * im)
    8: "Exp Expm1 Log Log1p Rsqrt Sin Cos Tan Asin Acos Atan Atan2 Angle Sinh Cosh Tanh Asinh Acosh Atanh"
    " Erf Erfc Erfinv Ndtri Lgamma Digamma Polygamma Zeta Igamma Igammac Betainc BesselI0e BesselI1e",
    9: "Xlogy Xlog1py",  # multiply, log
    10: "Elu",  # compare, exp, subtract
    12: "Selu",  # Elu, two multiplies
    14: "Sigmoid SoftplusGrad",  # 1 / (1 + exp(-x)), and its product with dy in place of the 1
    17: "Pow Softplus",  # exp(y * log(x)); log(1 + exp(x))
}


def _per_element(op: OpSpec, *, flops: int) -> OpCost:
    return streamed(op, flops * op.outputs[0].num_elements)


for _flops, _op_types in FLOPS_PER_ELEMENT.items():
    register(*_op_types.split())(partial(_per_element, flops=_flops))


@register("AddN", "AccumulateNV2")
def _add_n(op: OpSpec) -> OpCost:
    """An add per element and further tensor. Of lists, only tensors that both hold are added; the rest is passed on.

    (A loop's gradient adds a list with a single tensor to the list of all tensors, in every trip.)
    """
    if op.inputs[0].dtype != "variant":
        return streamed(op, (len(op.inputs) - 1) * op.outputs[0].num_elements)
    common = min(tensor.content_bytes for tensor in op.inputs)
    return OpCost(read_bytes=len(op.inputs) * common, written_bytes=common)


@register("ResizeBilinear", "ResizeBilinearGrad", "CropAndResize", "CropAndResizeGradImage")
def _resize_bilinear(op: OpSpec) -> OpCost:
    """Three interpolations a + (b - a) * t per pixel of the resized image, which is the gradient's input."""
    resized = op.inputs[0] if "Grad" in op.type else op.outputs[0]
    return streamed(op, 9 * resized.num_elements)


@register("ResizeBicubic", "ResizeBicubicGrad")
def _resize_bicubic(op: OpSpec) -> OpCost:
    """Five sums of four products per pixel of the resized image: 4 x 4 neighbours by row, then the rows."""
    resized = op.inputs[0] if "Grad" in op.type else op.outputs[0]
    return streamed(op, 5 * 7 * resized.num_elements)


@register("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _projective_transform(op: OpSpec) -> OpCost:
    """A bilinear interpolation per element; per pixel, two linear forms divided by a third."""
    pixels = op.outputs[0].num_elements // max(op.outputs[0].shape[-1], 1)
    return streamed(op, 9 * op.outputs[0].num_elements + (3 * 4 + 2 * 4) * pixels)
