"""Ops that make no buffer of their own, but pass on or overwrite the buffer of an input."""

from __future__ import annotations

from cost_models.specs import OpCost, OpSpec

# Ops that may overwrite an input of the same size that no other op needs: each was tried on CPUs with TensorFlow 2.21;
# kernels of other devices do the same (forward_input_or_allocate_output).
_OVERWRITING = frozenset((
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atanh", "BiasAdd", "Ceil", "Cos", "Cosh",
    "Digamma", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv",
    "FloorMod", "Inv", "InvGrad", "LeakyRelu", "LeakyReluGrad", "Lgamma", "Log", "Log1p", "LogSoftmax", "Maximum",
    "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad",
    "ReluGrad", "Rint", "Round", "Rsqrt", "RsqrtGrad", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid",
    "SigmoidGrad", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt",
    "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tan", "Tanh", "TanhGrad", "Xdivy", "Xlogy",
))  # fmt: skip


def may_overwrite(op_type: str) -> bool:
    """Whether an op may write its output over an input of the same size that no other op needs."""
    return op_type in _OVERWRITING


def handed_on(op: OpSpec, cost: OpCost) -> tuple[int | None, ...]:
    """For each output, the input (or variable's handle) whose buffer it shares; None where it has its own.

    An op without FLOPs and without traffic passes on the buffer of its input (Reshape, Identity, sums over no axis) or
    of a variable (ReadVariableOp): its output takes no memory of its own.
    """
    if cost.flops or cost.moved_bytes:
        return (None,) * len(op.outputs)
    handle = next((index for index, given in enumerate(op.inputs) if given.dtype == "resource"), None)
    sizes = [given.size_bytes for given in op.inputs]
    return tuple(
        sizes.index(made.size_bytes) if made.size_bytes and made.size_bytes in sizes else handle for made in op.outputs
    )
