"""Ops that move bytes, pass on a buffer, draw random numbers or write variables."""

from __future__ import annotations

from functools import partial

from cost_models.registry import register, streamed, total_bytes
from cost_models.specs import OpCost, OpSpec

# Nothing is computed and no tensor is copied: TensorFlow passes the buffer on, reads a shape, or has the value since
# before the step. Control flow and messages run on the host; their tensors stay on their devices.
_FREE = (
    "Identity IdentityN Snapshot StopGradient PreventGradient EnsureShape PlaceholderWithDefault Reshape"
    " Squeeze ExpandDims Bitcast Shape ShapeN Size Rank VariableShape Const Placeholder VarHandleOp"
    " ReadVariableOp VarIsInitializedOp Empty NoOp ControlTrigger Switch Merge RefSwitch RefMerge Enter"
    " Exit NextIteration LoopCond Assert Print PrintV2 StringFormat StringJoin AsString EmptyTensorList"
    " TensorListReserve TensorListLength TensorListElementShape TensorListGetItem TensorListSetItem"
    " TensorListPushBack TensorListPopBack TensorListResize TensorListConcatLists"
    " OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone RngReadAndSkip StatelessRandomGetAlg"
)

FREE_OP_TYPES = frozenset(_FREE.split())
"""Types of ops that do no work."""

# Every input is read and every output is written, with no arithmetic on floats.
_COPYING = (
    "ConjugateTranspose Concat ConcatV2 ConcatOffset Pack ParallelConcat Unpack Split SplitV"
    " StridedSliceGrad Pad PadV2 MirrorPad MirrorPadGrad Tile BroadcastTo BroadcastArgs"
    " BroadcastGradientArgs InvertPermutation Reverse ReverseV2 ReverseSequence Roll RandomShuffle"
    " DynamicStitch ParallelDynamicStitch DynamicPartition OneHot TensorScatterUpdate"
    " XlaDynamicUpdateSlice MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2"
    " MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixBandPart Diag DiagPart"
    " LookupTableFind LookupTableFindV2 StringToHashBucket StringToHashBucketFast StringToHashBucketStrong"
    " StringLower StringUpper StringStrip StringLength StringSplitV2 StaticRegexReplace RegexReplace"
    " SparseCross SparseToDense RaggedTensorToTensor"
    " SpaceToBatch SpaceToBatchND BatchToSpace BatchToSpaceND SpaceToDepth DepthToSpace"
    " StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg"
)


@register(*_FREE.split())
def _free(op: OpSpec) -> OpCost:
    return OpCost()


@register(*_COPYING.split())
def _copying(op: OpSpec) -> OpCost:
    return streamed(op)


@register("Transpose")
def _transposing(op: OpSpec) -> OpCost:
    """Passes the buffer on where axes longer than 1 keep their order (NonSingletonDimensionsAlign in transpose_op.cc).

    Dense layers on more than two axes have such transpositions. Where axes are equally long, which of them changed
    places is not known.
    """
    before, after = ([size for size in tensor.shape if size != 1] for tensor in (op.inputs[0], op.outputs[0]))
    return OpCost() if before == after and len(set(before)) == len(before) else streamed(op)


@register("ZerosLike", "OnesLike", "Fill", "Range", "LinSpace")
def _filling(op: OpSpec) -> OpCost:
    """Only the shape of an input matters."""
    return OpCost(written_bytes=total_bytes(op.outputs))


@register("Slice", "StridedSlice", "XlaDynamicSlice", "ResizeNearestNeighbor")
def _selecting(op: OpSpec) -> OpCost:
    """Reads what it outputs."""
    size_bytes = total_bytes(op.outputs)
    return OpCost(read_bytes=size_bytes, written_bytes=size_bytes)


@register("Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd")
def _gathering(op: OpSpec) -> OpCost:
    """Reads what it outputs, and the indices."""
    size_bytes = total_bytes(op.outputs)
    return OpCost(read_bytes=size_bytes + op.inputs[1].size_bytes, written_bytes=size_bytes)


@register("TensorListFromTensor", "TensorListScatter", "TensorListScatterV2", "TensorListSplit")
@register("TensorListStack", "TensorListGather", "TensorListConcat", "TensorListConcatV2")
def _list_copying(op: OpSpec) -> OpCost:
    """Copies between a tensor and a list of equal size; the larger size counts, because a size may be unknown."""
    size_bytes = max(op.inputs[0].size_bytes, op.outputs[0].size_bytes)
    return OpCost(read_bytes=size_bytes, written_bytes=size_bytes)


@register("ScatterNd", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin")
def _scattering(op: OpSpec) -> OpCost:
    """An operation per element of the updates: the second input of ScatterNd, the third of the others."""
    updates = op.inputs[1] if op.type == "ScatterNd" else op.inputs[2]
    return streamed(op, updates.num_elements)


@register("ResizeNearestNeighborGrad")
def _resize_nearest_grad(op: OpSpec) -> OpCost:
    """An add per element of the incoming gradient."""
    return streamed(op, op.inputs[0].num_elements)


# FLOPs per number. Philox4x32-10 makes 4 words in 10 rounds of 2 wide multiplications, 4 xors and 2 key
# additions (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 20 per word. A normal
# pair is Box-Muller on two words (log 8, square root 4, sine and cosine 8 each, 2 multiplications): 15 more.
# A truncated normal is drawn again until it is within two standard deviations, as 95.4 % are: 35 / 0.954.
_RANDOM = {
    20: "RandomUniform RandomUniformInt StatelessRandomUniform StatelessRandomUniformV2"
    " StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt"
    " StatelessRandomUniformFullIntV2 StatefulUniform StatefulUniformInt StatefulUniformFullInt",
    35: "RandomStandardNormal StatelessRandomNormal StatelessRandomNormalV2 StatefulStandardNormalV2",
    37: "TruncatedNormal StatelessTruncatedNormal StatelessTruncatedNormalV2 StatefulTruncatedNormal",
}


def _random(op: OpSpec, *, flops: int) -> OpCost:
    return streamed(op, flops * op.outputs[0].num_elements)


for _flops, _op_types in _RANDOM.items():
    register(*_op_types.split())(partial(_random, flops=_flops))


@register("AssignVariableOp", "Assign")
def _assign(op: OpSpec) -> OpCost:
    """Copies its value. The variable comes as a handle without a size, or as itself in TensorFlow 1."""
    size_bytes = op.inputs[1].size_bytes
    return OpCost(read_bytes=size_bytes, written_bytes=size_bytes)


@register("AssignAddVariableOp", "AssignSubVariableOp", "AssignAdd", "AssignSub")
def _assign_add(op: OpSpec) -> OpCost:
    """Reads the variable and its change, writes the variable."""
    value = op.inputs[1]
    return OpCost(flops=value.num_elements, read_bytes=2 * value.size_bytes, written_bytes=value.size_bytes)


@register("ResourceScatterUpdate")
def _scatter_assign(op: OpSpec) -> OpCost:
    """Copies the rows of its third input to the positions in its second input."""
    indices, rows = op.inputs[1:3]
    return OpCost(read_bytes=indices.size_bytes + rows.size_bytes, written_bytes=rows.size_bytes)


@register("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterMax", "ResourceScatterMin")
def _scatter_assign_add(op: OpSpec) -> OpCost:
    """Reads the rows of its third input and the variable's rows at the positions in its second; writes the latter."""
    indices, rows = op.inputs[1:3]
    return OpCost(
        flops=rows.num_elements,
        read_bytes=indices.size_bytes + 2 * rows.size_bytes,
        written_bytes=rows.size_bytes,
    )
