"""Walk through ops in the order in which a device runs them, and record the buffers that are held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cost_models.buffers import may_overwrite

Change = tuple[int, str, int]
"""Index of an op in the order, a tensor, and the bytes that its buffer takes; negative when it is freed."""


class Runs(Protocol):
    """An op: its type, and the names of the tensors that it reads and makes."""

    @property
    def type(self) -> str:
        """TensorFlow op type."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Tensors read, in order."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Tensors made, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Buffers of some ops.

    Attributes:
        changes: Every buffer allocated and freed, in order.
        most_bytes: Peak bytes.
        most_after: Number of changes up to the peak.
    """

    changes: Sequence[Change]
    most_bytes: int
    most_after: int

    @property
    def left_bytes(self) -> int:
        """Bytes held at the end."""
        return sum(size for _, _, size in self.changes)

    def alive(self) -> list[tuple[str, int]]:
        """Tensors and bytes of the buffers held at the peak."""
        sizes: Counter[str] = Counter()
        for _, tensor, size in self.changes[: self.most_after]:
            sizes[tensor] += size
        return [(tensor, size) for tensor, size in sizes.items() if size]


def walk(
    ops: Mapping[str, Runs],
    order: Iterable[str],
    *,
    given: Collection[str],
    kept: Collection[str],
    roots: Mapping[str, str | None],
    aliases: Mapping[str, str],
    size_bytes: Callable[[str], int],
    scratch_bytes: Mapping[str, int] | None = None,
    overlapping: bool = False,
) -> Walk:
    """Run ops one by one: an op allocates its outputs at its start and frees buffers without other readers at its end.

    Args:
        ops: By name.
        order: Names of the ops to run.
        given: Tensors that are there already and stay; they are not counted.
        kept: Tensors that stay to the end.
        roots: For tensors without a buffer of their own, the tensor that has it, or None for a variable.
        aliases: Tensors that are read in place of others.
        size_bytes: Bytes of a tensor's buffer.
        scratch_bytes: Temporary memory of ops while they run; it counts as part of their output.
        overlapping: Whether an op may still run when the next one starts. An output is then written over an input only
            if all others that read it are ops whose results are read here too.
    """
    scratch = scratch_bytes or {}
    names = list(order)
    reads = {
        name: list(dict.fromkeys(roots.get(t, t) for t in (aliases.get(n, n) for n in ops[name].inputs)))
        for name in names
    }
    readers = Counter(buffer for buffers in reads.values() for buffer in buffers)
    staying = {roots.get(name, name) for name in kept}
    shared = _read_meanwhile(ops, reads, roots) if overlapping else frozenset[tuple[str, str | None]]()
    held: dict[str, int] = {}
    changes: list[Change] = []
    now = most = most_after = 0
    for index, name in enumerate(names):
        op, read = ops[name], reads[name]
        made = [output for output in op.outputs if output not in roots and output not in given]
        may_be_free = read if may_overwrite(op.type) else ()
        for output in made:
            size = size_bytes(output)
            free = (
                b
                for b in may_be_free
                if b in held and held[b] == size and readers[b] == 1 and b not in staying and (name, b) not in shared
            )
            if (buffer := next(free, None)) is not None:
                now -= held.pop(buffer)
                changes.append((index, buffer, -size))
            now += size
            held[output] = size
            changes.append((index, output, size))
        own = scratch.get(name, 0)
        if own:
            changes.append((index, op.outputs[0], own))
        if now + own > most:
            most, most_after = now + own, len(changes)
        if own:
            changes.append((index, op.outputs[0], -own))
        for buffer in read:
            readers[buffer] -= 1
        for buffer in (*read, *made):
            if buffer in held and not readers.get(buffer) and buffer not in staying:
                size = held.pop(buffer)
                now -= size
                changes.append((index, buffer, -size))
    return Walk(changes=changes, most_bytes=most, most_after=most_after)


def _read_meanwhile(
    ops: Mapping[str, Runs], reads: Mapping[str, Sequence[str | None]], roots: Mapping[str, str | None]
) -> frozenset[tuple[str, str | None]]:
    """Pairs of an op and a buffer that another op may read meanwhile; ops that only pass buffers on take no time."""
    readers: dict[str | None, set[str]] = {}
    maker: dict[str | None, str] = {}
    for name, buffers in reads.items():
        maker.update(dict.fromkeys(ops[name].outputs, name))
        if not ops[name].outputs or any(output not in roots for output in ops[name].outputs):
            for buffer in buffers:
                readers.setdefault(buffer, set()).add(name)
    pairs = set()
    for name, buffers in reads.items():
        before = {maker[buffer] for buffer in buffers if buffer in maker}
        pairs.update((name, buffer) for buffer in buffers if readers.get(buffer, set()) - before - {name})
    return frozenset(pairs)
