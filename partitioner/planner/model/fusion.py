"""Group ops as XLA fuses them on GPUs, so that planner and simulators see kernels in place of ops.

Element-wise ops fuse with those that read them, and reductions with what they read; a kernel reads and writes each
tensor once. Products, convolutions, poolings and all else stay alone, as libraries compute them. What a reduction or
such an op makes is known only when its kernel has ended, so its readers are one level deeper: ops fuse within one
level. Batch normalisation and softmax reduce first, one level before the rest: the one in a pass of its own, the other
with its rows on the chip.

A tensor that is cheap to compute from a single tensor of its size (a conversion, a difference from a mean) is not
stored: each kernel that reads it computes it again (a view). A few elements that follow from shapes and constants are
known when XLA compiles, and no kernel computes them.

Source: XLA's instruction_fusion.cc, fusion_merger.cc, multi_output_fusion.cc and batchnorm_expander.cc.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from copy import copy
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import networkx as nx
from networkx.utils import UnionFind

from cost_models.buffers import handed_on
from cost_models.formulas_elementwise import FLOPS_PER_ELEMENT
from cost_models.gpu_seconds import BATCH_NORMALISATIONS
from cost_models.specs import OpCost
from partitioner.ir.fusion import FusedGroup, Fusion
from partitioner.ir.op_graph import Op, OpGraph, Variable
from partitioner.ir.sizes import Node, sizes_among

_CHEAP_FLOPS = 5
_ELEMENTWISE = {name: flops for flops, names in FLOPS_PER_ELEMENT.items() for name in names.split()}
_MOVING = frozenset((
    "AddN", "BroadcastTo", "Fill", "ZerosLike", "OnesLike", "Range", "Pad", "PadV2", "MirrorPad", "Slice",
    "StridedSlice", "StridedSliceGrad", "Concat", "ConcatV2", "Pack", "Split", "SplitV", "Unpack", "Transpose", "Tile",
    "OneHot", "Reverse", "ReverseV2", "Gather", "GatherV2", "ResourceGather", "MatrixBandPart", "RandomUniform",
    "StatelessRandomUniform", "StatelessRandomUniformV2", "RandomStandardNormal", "StatelessRandomNormalV2",
))  # fmt: skip
_ASSIGNING = frozenset(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"))
_REDUCING = frozenset(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "BiasAddGrad", "L2Loss", "ArgMax", "ArgMin"))
_TWO_PASSES = BATCH_NORMALISATIONS | {
    "Softmax",
    "LogSoftmax",
    "SoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogits",
}
# What only repeats or converts another tensor is computed again in the backward pass too. Of all else, what the forward
# pass leaves for the backward pass is stored: whether XLA trades that memory for time is not known.
_COPIES = frozenset(("BroadcastTo", "Cast", "Fill", "ZerosLike"))
# What is small beside a tensor that it is broadcast to.
_BROADCAST = 8
# Elements of a tensor that is taken to be a constant of kernels, where XLA can know it.
_FEW = 64


class _Kind(Enum):
    FREE = auto()
    KNOWN = auto()
    FUSED = auto()
    REDUCTION = auto()
    TWO_PASSES = auto()
    ALONE = auto()


# What these make can be used within their kernel.
_MADE_WITHIN = (_Kind.FUSED, _Kind.TWO_PASSES)
# No kernel computes these, and they have no kernel read anything.
_NOT_RUN = (_Kind.FREE, _Kind.KNOWN)


def fuse(graph: OpGraph, costs: Sequence[OpCost], compiled: Container[str] | None = None) -> Fusion:
    """The groups of a step that XLA compiles for a GPU.

    Args:
        graph: The step.
        costs: The cost of each op.
        compiled: Names of the ops that are compiled; all others stay alone. None if all are that can be.
    """
    return Fuser(graph, costs, compiled).result()


def _kind(op: Op, cost: OpCost, *, is_compiled: bool, is_known: bool) -> _Kind:
    if op.host_only or cost.parts or not cost.costed or not is_compiled:
        return _Kind.ALONE
    if not cost.flops and not cost.moved_bytes:
        return _Kind.FREE
    if is_known:
        return _Kind.KNOWN
    if op.type in _REDUCING:
        return _Kind.REDUCTION
    if op.type in _TWO_PASSES:
        return _Kind.TWO_PASSES
    return _Kind.FUSED if op.type in _ELEMENTWISE or op.type in _MOVING or op.type in _ASSIGNING else _Kind.ALONE


def _small_sizes(graph: OpGraph) -> set[str]:
    """The ops whose few results are known once shapes are."""
    sizes = sizes_among(Node(op.name, op.type, op.inputs) for op in graph.ops if not (op.stateful or op.draws))
    few = {tensor.name for tensor in graph.tensors if 0 < tensor.spec.num_elements <= _FEW}
    return {name for name in sizes if graph.op[name].outputs and few.issuperset(graph.op[name].outputs)}


def _is_cheap(op: Op) -> bool:
    """Whether XLA would rather compute what an op makes again than store it; of a normalisation, given statistics."""
    if op.type in BATCH_NORMALISATIONS:
        return "Grad" not in op.type
    return op.type in _COPIES or _ELEMENTWISE.get(op.type, 99) <= _CHEAP_FLOPS


class _Kernel(NamedTuple):
    """Names of all ops of a set, those that cost, what is stored of them, and what each that is computed reads."""

    names: tuple[str, ...]
    ops: Sequence[Op]
    stored: set[str]
    needed: Sequence[tuple[Op, set[str]]]


class Fuser:
    """Levels first, then sets of ops, then what enters and leaves each set; arguments as for `fuse`."""

    def __init__(self, graph: OpGraph, costs: Sequence[OpCost], compiled: Container[str] | None) -> None:
        self.graph = graph
        self.cost = {op.name: cost for op, cost in zip(graph.ops, costs, strict=True)}
        sizes = _small_sizes(graph)
        self.kind = {
            op.name: _kind(op, cost, is_compiled=compiled is None or op.name in compiled, is_known=op.name in sizes)
            for op, cost in zip(graph.ops, costs, strict=True)
        }
        self.alias = dict(self._aliases(costs))
        self.level = self._levels()
        self.sets = self._sets()
        self.set_of = self._acyclic()
        self.readers = self._real_readers()
        self.views = self._views()

    def resized(self, graph: OpGraph, costs: Sequence[OpCost]) -> Fuser:
        """The same kernels of the same step with another number of rows."""
        other = copy(self)
        vars(other).update(_kernels=self._kernels, _known=self._known, _adding=self._adding)  # for all numbers of rows
        other.graph, other.cost = graph, {op.name: cost for op, cost in zip(graph.ops, costs, strict=True)}
        return other

    def _aliases(self, costs: Sequence[OpCost]) -> Iterator[tuple[str, str]]:
        """Outputs of ops that do nothing, with what they stand for: an input, or a variable by its name."""
        for op, spec, cost in zip(self.graph.ops, self.graph.specs, costs, strict=True):
            if self.kind[op.name] is _Kind.FREE:
                given = [f"variable {name}" for name in op.variables] + list(op.inputs)
                for name, index in zip(op.outputs, handed_on(spec, cost), strict=True):
                    if index is not None:
                        yield name, given[index]

    def _root(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def _levels(self) -> dict[str, int]:
        """Kernels that must have ended before an op can run; of two-pass ops, before their second pass."""
        level: dict[str, int] = {}
        for op in self.graph.ops:
            before = [self.graph.tensor[name].producer for name in op.inputs]
            own = max((level[p] + self._ends_kernel(p) for p in before), default=0)
            own = max([own, *(level[name] for name in op.control_inputs)])
            level[op.name] = own + (self.kind[op.name] is _Kind.TWO_PASSES)
        return level

    def _ends_kernel(self, name: str) -> bool:
        return self.kind[name] in (_Kind.REDUCTION, _Kind.ALONE)

    def _sets(self) -> UnionFind:
        """Ops that may share a kernel: neighbours of one level and phase, and reductions of one tensor in a layer."""
        graph, sets = self.graph, UnionFind(op.name for op in self.graph.ops)
        for op in graph.ops:
            kind = self.kind[op.name]
            if kind is _Kind.ALONE:
                continue
            for name in op.inputs:
                maker = graph.op[graph.tensor[name].producer]
                if self._may_join(maker, op, name):
                    sets.union(maker.name, op.name)
        for tensor in graph.tensors:
            if self._ends_kernel(tensor.producer) and tensor.spec.num_elements > 1:
                self._join_siblings(tensor.name, sets)
        return sets

    def _may_join(self, maker: Op, reader: Op, tensor: str) -> bool:
        if maker.phase is not reader.phase or self._ends_kernel(maker.name):
            return False
        if self.level[maker.name] != self.level[reader.name] or self.kind[reader.name] is _Kind.TWO_PASSES:
            return False
        return maker.layer == reader.layer or self.graph.tensor[tensor].spec.num_elements > 1

    def _join_siblings(self, tensor: str, sets: UnionFind) -> None:
        first: dict[tuple[object, ...], str] = {}
        for name in self.graph.consumers[tensor]:
            op = self.graph.op[name]
            if self.kind[name] in (_Kind.FUSED, _Kind.REDUCTION):
                sets.union(first.setdefault((op.phase, op.layer, self.level[name]), name), name)

    def _acyclic(self) -> dict[str, str]:
        """The set of each op; sets that would wait for each other are dissolved, so each set left is convex."""
        set_of = {op.name: self.sets[op.name] for op in self.graph.ops}
        while True:
            quotient = nx.DiGraph()
            for op in self.graph.ops:
                before = {set_of[self.graph.tensor[name].producer] for name in op.inputs}
                before |= {set_of[name] for name in op.control_inputs}
                quotient.add_edges_from((source, set_of[op.name]) for source in before if source != set_of[op.name])
            knots = [knot for knot in nx.strongly_connected_components(quotient) if len(knot) > 1]
            if not knots:
                return set_of
            tied = set().union(*knots)
            set_of = {name: name if root in tied else root for name, root in set_of.items()}

    def _real_readers(self) -> dict[str, list[str]]:
        """For each tensor, the ops that read it, or what free ops make of it, and do something."""
        readers: dict[str, list[str]] = {}
        for op in self.graph.ops:
            if self.kind[op.name] not in _NOT_RUN:
                for name in dict.fromkeys(map(self._root, op.inputs)):
                    readers.setdefault(name, []).append(op.name)
        for name in self.graph.outputs:
            readers.setdefault(self._root(name), []).append("")
        return readers

    def _views(self) -> dict[str, str]:
        """Tensors that readers compute again, by the tensor that they need for it; empty where it is a small one."""
        views: dict[str, str] = {}
        for op in self.graph.ops:
            if self.kind[op.name] not in _MADE_WITHIN or not _is_cheap(op):
                continue
            made = self.graph.tensor[op.outputs[0]]
            readers = self.readers.get(made.name, [])
            if not readers or any(not name or self.kind[name] is _Kind.ALONE for name in readers):
                continue
            if op.type not in _COPIES and any(self.graph.op[name].phase is not op.phase for name in readers):
                continue
            sources = {views.get(root, root) for root in map(self._root, op.inputs)} - {""}
            large = {name for name in sources if self._elements(name) * _BROADCAST > made.spec.num_elements}
            if len(large) <= 1 and all(self._size(name) <= made.size_bytes for name in large):
                views[made.name] = next(iter(large), "")
        return views

    def _elements(self, name: str) -> int:
        spec = self.graph.tensor[name].spec if name in self.graph.tensor else self._variable(name).spec
        return spec.num_elements

    def _size(self, name: str) -> int:
        return self.graph.tensor[name].size_bytes if name in self.graph.tensor else self._variable(name).size_bytes

    def _variable(self, name: str) -> Variable:
        return self.graph.variable[name.removeprefix("variable ")]

    def _sources(self, name: str, inside: str) -> set[str]:
        """The stored tensors from which a kernel computes a tensor that it reads; none if it makes it itself."""
        found, seen, stack = set(), set(), [self._root(name)]
        while stack:
            root = stack.pop()
            if root in seen or (root in self.graph.tensor and self._made_inside(root, inside)):
                continue
            seen.add(root)
            if root in self.views:
                maker = self.graph.op[self.graph.tensor[root].producer]
                stack += map(self._root, maker.inputs)
            else:
                found.add(root)
        return found

    def _made_inside(self, root: str, inside: str) -> bool:
        maker = self.graph.tensor[root].producer
        return self.set_of[maker] == inside and self.kind[maker] in _MADE_WITHIN

    def _made_just_before(self, source: str, op: Op) -> bool:
        """Whether the kernel that makes a tensor can reduce it too, for an op whose first pass reads it."""
        maker = self.graph.op.get(self.graph.tensor[source].producer) if source in self.graph.tensor else None
        if maker is None or self.kind[maker.name] is not _Kind.FUSED:
            return False
        return maker.phase is op.phase and self.level[maker.name] == self.level[op.name] - 1

    def result(self) -> Fusion:
        """The groups, and what becomes of tensors."""
        inner = {
            name
            for kernel in self._kernels
            for op in kernel.ops
            for name in op.outputs
            if name not in kernel.stored and name not in self.views
        }
        inner.update(name for name, source in self.views.items() if source not in self.graph.tensor)
        views = {name: source for name, source in self.views.items() if source in self.graph.tensor}
        return Fusion(
            groups=tuple(map(self._group, self._kernels)),
            inner=frozenset(inner),
            views=views,
            known=self._known,
            adding=self._adding,
        )

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(name for name, kind in self.kind.items() if kind is _Kind.KNOWN)

    @cached_property
    def _adding(self) -> frozenset[str]:
        """Ops whose results elementwise ops make, with those that pass such results on."""
        graph = self.graph
        elementwise = {name for op in graph.ops if self.kind[op.name] is _Kind.FUSED for name in op.outputs}
        return frozenset(
            op.name for op in graph.ops if op.outputs and elementwise.issuperset(map(self._root, op.outputs))
        )

    @cached_property
    def _kernels(self) -> list[_Kernel]:
        everyone: dict[str, list[Op]] = {}
        for op in self.graph.ops:
            everyone.setdefault(self.set_of[op.name], []).append(op)
        kernels = []
        for root, all_ops in everyone.items():
            ops = [op for op in all_ops if self.kind[op.name] not in (*_NOT_RUN, _Kind.ALONE)]
            if not ops:
                continue
            kernels.append(
                _Kernel(
                    names=tuple(op.name for op in all_ops),
                    ops=ops,
                    stored={name for op in ops for name in op.outputs if self._is_stored(name, root)},
                    needed=[(op, self._read(op, root)) for op in ops if self._is_needed(op, root)],
                )
            )
        return kernels

    def _read(self, op: Op, inside: str) -> set[str]:
        """The stored tensors that a kernel reads for an op."""
        sources = set().union(*(self._sources(name, inside) for name in op.inputs))
        if op.type in _ASSIGNING and op.type != "AssignVariableOp":
            sources |= {f"variable {name}" for name in op.variables}
        return sources

    def _is_needed(self, op: Op, inside: str) -> bool:
        """Whether a kernel computes an op for itself; what only others read may be a view, which they compute."""
        if not op.outputs or any(name not in self.views for name in op.outputs):
            return True
        return any(self.set_of.get(reader) == inside for name in op.outputs for reader in self.readers.get(name, []))

    def _is_stored(self, name: str, inside: str) -> bool:
        if name in self.views:
            return False
        maker = self.graph.tensor[name].producer
        readers = self.readers.get(name, [])
        return any(not reader or self.set_of[reader] != inside or self._ends_kernel(maker) for reader in readers)

    def _group(self, kernel: _Kernel) -> FusedGroup:
        read: dict[str, int] = {}
        passes, sizes = 0, set()
        for op, sources in kernel.needed:
            cost = self.cost[op.name]
            own = {source: min(self._size(source), max(cost.read_bytes, 1)) for source in sources}
            for source, size in own.items():
                read[source] = max(read.get(source, 0), size)
            if op.type in BATCH_NORMALISATIONS and op.attributes.get("is_training", True) is not False:
                passes += sum(size for source, size in own.items() if not self._made_just_before(source, op))
                sizes.add(-self._elements(op.inputs[0]))
            if self.kind[op.name] is _Kind.REDUCTION:
                sizes.add(self._elements(op.inputs[0]))
            elif op.type in _ASSIGNING or kernel.stored.intersection(op.outputs):
                sizes.add(max(self._elements(name) for name in (*op.outputs, *op.inputs)))
        written = sum(self._size(name) for name in kernel.stored)
        written += sum(self.cost[op.name].written_bytes for op in kernel.ops if op.type in _ASSIGNING)
        return FusedGroup(
            ops=kernel.names,
            timed=kernel.ops[-1].name,
            flops=sum(self.cost[op.name].flops for op, _ in kernel.needed),
            moved_bytes=sum(read.values()) + passes + written,
            launches=len(sizes),
        )
