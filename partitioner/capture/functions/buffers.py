"""Buffers inside a function: shared buffers, buffers kept by lists, and the peak bytes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cost_models.buffers import handed_on
from cost_models.registry import op_cost, unknown
from cost_models.specs import OpCost, OpSpec, TensorSpec
from partitioner.ir.buffer_walk import walk
from partitioner.ir.run_order import run_orders

_TO_LISTS = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_FROM_LISTS = {"TensorListGetItem": 0, "TensorListPopBack": 1}


@dataclass(kw_only=True)
class FunctionBuffers:
    """Buffers of the tensors in a function, read op by op; tensors are given by name.

    Attributes:
        roots: For tensors without a buffer of their own, the tensor that has it; None for what stays anyway, which are
            variables and constants.
        saved: Tensors that are already kept for a gradient.
        in_lists: Tensors whose bytes are those of a list.
        working: Names of the ops that do more than pass a buffer on.
        waiting: Ops that were not read yet.
    """

    roots: dict[str, str | None] = field(default_factory=dict)
    saved: set[str] = field(default_factory=set)
    in_lists: set[str] = field(default_factory=set)
    working: set[str] = field(default_factory=set)
    waiting: list[tuple[Any, Callable[[Any], OpSpec]]] = field(default_factory=list)

    def root(self, name: str) -> str | None:
        """The tensor that owns the buffer."""
        return self.roots.get(name, name)

    def follow(self, op: Any, spec: Callable[[Any], OpSpec]) -> None:
        """Add the outputs of an op, lazily: most graphs never need them.

        Args:
            op: An operation of TensorFlow.
            spec: Gives what cost formulas see of it.
        """
        self.waiting.append((op, spec))

    def _catch_up(self) -> None:
        for op, spec in self.waiting:
            self._add(op, spec)
        self.waiting.clear()

    def _add(self, op: Any, spec_of: Callable[[Any], OpSpec]) -> None:
        if op.type == "Const":
            self.roots[op.outputs[0].name] = None
        elif op.type in _TO_LISTS:
            root = self.root(op.inputs[_TO_LISTS[op.type]].name)
            self.in_lists |= {root} if root is not None else set()
        elif op.type in _FROM_LISTS:
            self.in_lists.add(op.outputs[_FROM_LISTS[op.type]].name)
        else:
            spec = spec_of(op)
            cost = _cost(spec)
            if cost.flops or cost.moved_bytes:
                self.working.add(op.name)
            for made, index in zip(op.outputs, handed_on(spec, cost), strict=True):
                if index is not None:
                    given = op.inputs[index]
                    self.roots[made.name] = None if spec.inputs[index].dtype == "resource" else self.root(given.name)

    def saved_bytes(self, name: str, size_bytes: int) -> int:
        """Bytes needed to keep a tensor for a gradient: none if its buffer stays anyway or is kept already."""
        self._catch_up()
        root = self.root(name)
        if root is None or root in self.saved:
            return 0
        self.saved.add(root)
        return size_bytes

    def held_bytes(
        self,
        ops: Iterable[Any],
        arguments: Iterable[str],
        results: Sequence[str],
        specs: Mapping[str, TensorSpec],
        at_once: int,
    ) -> int:
        """Peak bytes of several runs at once, without arguments, results and the contents of lists.

        Args:
            ops: Operations of TensorFlow, in an order in which they can run.
            arguments: Names of the function's arguments.
            results: Names of what it returns.
            specs: Of all these tensors.
            at_once: Number of runs that may be at their peak together.
        """
        self._catch_up()
        ran = {
            op.name: _Ran(
                type=op.type,
                inputs=tuple(tensor.name for tensor in op.inputs),
                outputs=tuple(tensor.name for tensor in op.outputs),
            )
            for op in ops
        }
        given = set(arguments)
        maker = {output: name for name, op in ran.items() for output in op.outputs}
        needs = {name: {maker[read] for read in op.inputs if read in maker} for name, op in ran.items()}

        def size_bytes(name: str) -> int:
            kept_elsewhere = name in self.in_lists or specs[name].dtype == "variant"
            return 0 if kept_elsewhere else specs[name].size_bytes

        walks = (
            walk(ran, order, given=given, kept=results, roots=self.roots, aliases={}, size_bytes=size_bytes)
            for order in run_orders(list(ran), needs, self.working)
        )
        peak = max(profile.most_bytes for profile in walks)
        made = {root for name in results if (root := self.root(name)) is not None and root not in given}
        return max(at_once * peak - sum(map(size_bytes, made)), 0)


def _cost(spec: OpSpec) -> OpCost:
    try:
        return op_cost(spec)
    except ValueError:  # a formula needs a rank that TensorFlow does not know
        return unknown(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
