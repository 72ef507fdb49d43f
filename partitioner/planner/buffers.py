"""Which tensors share a buffer, which variables live where, and what is kept between phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op, Phase, VariableKind

# Ops that write their output over an input of the same size that nobody else needs: tried on CPUs, one by one, with
# TensorFlow 2.21; kernels of other devices ask for it in the same way (forward_input_or_allocate_output).
_OVERWRITING = frozenset((
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atanh", "BiasAdd", "Ceil", "Cos", "Cosh",
    "Digamma", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv",
    "FloorMod", "Inv", "InvGrad", "LeakyRelu", "LeakyReluGrad", "Lgamma", "Log", "Log1p", "LogSoftmax", "Maximum",
    "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "ReciprocalGrad", "Relu", "Relu6", "Relu6Grad",
    "ReluGrad", "Rint", "Round", "Rsqrt", "RsqrtGrad", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid",
    "SigmoidGrad", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt",
    "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tan", "Tanh", "TanhGrad", "Xdivy", "Xlogy",
))  # fmt: skip


@dataclass(frozen=True)
class Buffers:
    """Buffers of a costed graph.

    An op without FLOPs and without traffic hands on its input's buffer (Reshape, Identity, sums over no axis) or a
    variable's (ReadVariableOp): its output takes no memory of its own. So does a transposition that moves nothing
    (dense layers on more than two axes have them).
    """

    costed: CostedGraph

    @cached_property
    def passes_on(self) -> Mapping[str, str | None]:
        """For each output without a buffer of its own, the tensor that has it; None for a variable."""
        graph = self.costed.graph
        found: dict[str, str | None] = {}
        for op, cost in zip(graph.ops, self.costed.costs, strict=True):
            if (cost.flops or cost.moved_bytes) and not self._moves_nothing(op):
                continue
            for name in op.outputs:
                size = graph.tensor[name].size_bytes
                same = [source for source in op.inputs if size and graph.tensor[source].size_bytes == size]
                if same:
                    found[name] = same[0]
                elif op.variables:
                    found[name] = None
        return found

    def _moves_nothing(self, op: Op) -> bool:
        """TensorFlow copies nothing where longer axes keep their order; axes of one length could be exchanged."""
        if op.type != "Transpose":
            return False
        before, after = (self.costed.graph.tensor[name].spec.shape for name in (op.inputs[0], op.outputs[0]))
        long = [size for size in before if size != 1]
        return long == [size for size in after if size != 1] and len(set(long)) == len(long)

    @cached_property
    def gradients(self) -> frozenset[str]:
        """Tensors that backward ops hand to update ops, and the buffers these lie in."""
        graph = self.costed.graph
        names = {
            name
            for op in graph.ops
            if op.phase is Phase.UPDATE
            for name in op.inputs
            if graph.op[graph.tensor[name].producer].phase is Phase.BACKWARD
        }
        return frozenset(names | {root for name in names if (root := self.root(name)) is not None})

    def root(self, name: str) -> str | None:
        """The tensor that owns the buffer of `name`; None when a variable does."""
        current: str | None = name
        while current is not None and current in self.passes_on:
            current = self.passes_on[current]
        return current

    @cached_property
    def kept(self) -> Mapping[str, str]:
        """Tensors that outlive their phase (saved for the backward pass, or gradients), by their op.

        A reader that costs nothing and hands nothing on (Shape) runs as soon as it can, and keeps nothing.
        """
        graph = self.costed.graph
        found: dict[str, str] = {}
        for op, cost in zip(graph.ops, self.costed.costs, strict=True):
            is_free = not cost.flops and not cost.moved_bytes
            if is_free and not any(name in self.passes_on for name in op.outputs):
                continue
            for name in op.inputs:
                root = self.root(name)
                if root is not None:
                    maker = graph.op[graph.tensor[root].producer]
                    if maker.phase is not op.phase and maker.type != "Const":
                        found[root] = maker.name
        return found

    @cached_property
    def home_op(self) -> Mapping[str, str]:
        """For each variable, an op that uses it: they share a device."""
        found: dict[str, str] = {}
        for op in self.costed.graph.ops:
            for variable in op.variables:
                found.setdefault(variable, op.name)
        return found


def may_overwrite(op: Op) -> bool:
    """Whether an op writes its output over an input of the same size that nobody else needs."""
    return op.type in _OVERWRITING


def total_bytes(costed: CostedGraph) -> dict[str, int]:
    """Bytes a step keeps between phases, over all devices: variables, gradients, saved activations."""
    buffers = Buffers(costed)
    graph = costed.graph
    kinds = dict.fromkeys(VariableKind, 0)
    for variable in graph.variables:
        kinds[variable.kind] += variable.size_bytes
    gradients = sum(
        graph.tensor[r].size_bytes for r in buffers.kept if graph.op[buffers.kept[r]].phase is Phase.BACKWARD
    )
    saved = sum(graph.tensor[r].size_bytes for r in buffers.kept if graph.op[buffers.kept[r]].phase is Phase.FORWARD)
    return {
        "parameters": kinds[VariableKind.PARAMETER],
        "gradients": gradients,
        "slots": kinds[VariableKind.SLOT],
        "other state": kinds[VariableKind.STATE],
        "activations": saved,
    }
