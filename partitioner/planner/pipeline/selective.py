"""Selective recompute: the cheap forward ops that a stage short of memory runs again, rather than keep their results.

Attention keeps several matrices of tokens by tokens, and activation functions several tensors of the size of their
input, that take little time to make again from what the products of matrices before them gave. Running only these again
frees most of the memory (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).

An op is cheap if it takes few FLOPs for each element that it makes: any that works element by element, a softmax, and
the products of queries and keys, but no layer of some width. Of a row of cheap ops, those run again that lead to
fewer bytes: where the result of one is no larger than what only it reads, the result is kept in place of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op, Phase
from partitioner.planner.model.buffers import buffers_of

# Of a product of queries and keys: twice the size of a head, which is 128 in large Transformers.
_MOST_FLOPS_AN_ELEMENT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Selective:
    """What stages run again and keep.

    Attributes:
        ops: Forward ops that run again.
        kept: The tensors that are kept for these and for the backward, by the op that makes each.
    """

    ops: frozenset[str]
    kept: Mapping[str, str]


def selective(costed: CostedGraph, by_row: Collection[str]) -> Selective:
    """What stages run again and keep if they run only cheap ops again.

    Args:
        costed: The step of a whole batch.
        by_row: Its ops that differ from microbatch to microbatch.
    """
    return _Selection(costed, by_row).run()


class _Selection:
    def __init__(self, costed: CostedGraph, by_row: Collection[str]) -> None:
        self.graph, self.buffers, self.by_row = costed.graph, buffers_of(costed), by_row
        self.cheap = {
            op.name
            for op, cost in zip(costed.graph.ops, costed.costs, strict=True)
            if self._may_run_again(op) and cost.flops <= _MOST_FLOPS_AN_ELEMENT * self._num_elements(op)
        }

    def run(self) -> Selective:
        readers = self._readers()
        again = {self._maker(name) for name in readers} & self.cheap
        for op in self.graph.ops:
            if op.name not in again:
                continue
            read = set(self._read(op))
            made = {name for name in map(self.buffers.root, op.outputs) if name in readers and name not in read}
            freed = {name for name in read if readers[name] == {op.name} and self._maker(name) not in again}
            if self._size_bytes(made) <= self._size_bytes(freed):
                again.discard(op.name)
                for name in read:
                    readers[name].discard(op.name)
        kept = {name: self._maker(name) for name, names in readers.items() if names and self._maker(name) not in again}
        return Selective(ops=frozenset({*again, *self._in_buffers_of(again)}), kept=kept)

    def _in_buffers_of(self, again: Collection[str]) -> Iterator[str]:
        """The ops whose results lie in buffers of results that are made again, such as reshapes."""
        for op in self.graph.ops:
            roots = (self.buffers.root(name) for name in op.outputs if name in self.buffers.passes_on)
            if self._may_run_again(op) and any(root is not None and self._maker(root) in again for root in roots):
                yield op.name

    def _readers(self) -> dict[str, set[str]]:
        """The tensors that are needed again if all cheap ops run again, and which of these read each.

        The backward is the reader with an empty name.
        """
        saved = [name for name, maker in self.buffers.kept.items() if self._is_activation(maker)]
        readers: dict[str, set[str]] = {name: {""} for name in saved}
        waiting = list(readers)
        while waiting:
            op = self.graph.op[self._maker(waiting.pop())]
            for name in self._read(op) if op.name in self.cheap else ():
                if name not in readers:
                    readers[name] = set()
                    waiting.append(name)
                readers[name].add(op.name)
        return readers

    def _read(self, op: Op) -> Iterator[str]:
        """The activations that an op reads."""
        for root in filter(None, map(self.buffers.root, op.inputs)):
            if self._is_activation(self._maker(root)):
                yield root

    def _is_activation(self, maker: str) -> bool:
        return self.graph.op[maker].phase is Phase.FORWARD and maker in self.by_row

    def _may_run_again(self, op: Op) -> bool:
        return self._is_activation(op.name) and not op.stateful and op.type != "Placeholder"

    def _num_elements(self, op: Op) -> int:
        return max(1, sum(self.graph.tensor[name].spec.num_elements for name in op.outputs))

    def _maker(self, tensor: str) -> str:
        return self.graph.tensor[tensor].producer

    def _size_bytes(self, tensors: Collection[str]) -> int:
        return sum(self.graph.tensor[name].size_bytes for name in tensors)
