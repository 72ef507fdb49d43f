"""The orders in which TensorFlow's executor runs the ops of a function."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence


def run_orders(
    ops: Sequence[str], needs: Mapping[str, Collection[str]], queued: Collection[str]
) -> Iterator[list[str]]:
    """The orders in which one thread of the executor may run ops.

    Ops that are cheap to start run first come, first served: all ops on a GPU, ops that only pass buffers on a CPU. Of
    other ops that become ready together, one op runs next, and the others are queued for any free thread; a busy thread
    runs last what it queued first. So on a CPU, gradients of weights that no op waits for may run at the very end, and
    keep their inputs alive. Which op runs next depends on TensorFlow's graph optimizers: both orders are given, with
    the last op next and with the first op next.

    Args:
        ops: Names in a topological order.
        needs: For each op, those of `ops` that must end before it.
        queued: Ops that are queued.
    """
    readers: dict[str, list[str]] = {}
    for name in ops:
        for source in needs[name]:
            readers.setdefault(source, []).append(name)
    for step in (1, -1) if queued else (1,):
        waiting = {name: len(needs[name]) for name in ops}
        order: list[str] = []
        started = [name for name in ops if not waiting[name]]
        ready = deque(name for name in started if name not in queued)
        stack = [name for name in reversed(started) if name in queued]
        while ready or stack:
            name = ready.popleft() if ready else stack.pop()
            order.append(name)
            for reader in readers.get(name, ()):
                waiting[reader] -= 1
            released = [reader for reader in readers.get(name, ()) if not waiting[reader]]
            ready.extend(reader for reader in released if reader not in queued)
            stack.extend(reader for reader in released[::step] if reader in queued)
        yield order
