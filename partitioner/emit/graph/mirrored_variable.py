"""A variable with a copy for every other replica: a step writes each copy itself, any other assignment writes all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# The real class of variables behind `tf.Variable` has no public name.
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from partitioner.ir.devices import DeviceName

_WRITES = (
    *("assign", "assign_add", "assign_sub", "batch_scatter_update", "_restore_from_tensors"),
    *(f"scatter_{kind}" for kind in ("add", "div", "max", "min", "mul", "sub", "update")),
    *(f"scatter_nd_{kind}" for kind in ("add", "max", "min", "sub", "update")),
)

_first_only: ContextVar[bool] = ContextVar("first_only", default=False)


class MirroredVariable(BaseResourceVariable):
    """The variable of the first replica, which is read and saved; assignments to it go to the copies too.

    Args:
        first: The variable of the first replica. It stays the owner of its tensor.
        copies: The variables of the other replicas, on their devices; replicas that share a device share a variable.
    """

    def __init__(self, first: Any, copies: Sequence[Any]) -> None:
        super().__init__(
            trainable=first.trainable,
            shape=first.shape,
            dtype=first.dtype,
            handle=first.handle,
            synchronization=first.synchronization,
            aggregation=first.aggregation,
            unique_id=first._unique_id,
            handle_name=first.name.split(":")[0],
            in_graph_mode=False,
        )
        self.first, self.copies = first, tuple(copies)


def _reaching_copies(name: str) -> Callable[..., Any]:
    def write(self: MirroredVariable, *arguments: Any, **options: Any) -> Any:
        # The first variable comes first: it refuses wrong values before any copy has changed.
        written = getattr(super(MirroredVariable, self), name)(*arguments, **options)
        if not _first_only.get():
            for copy in self.copies:
                getattr(copy, name)(*arguments, **options)
        return written

    return write


for _name in _WRITES:
    setattr(MirroredVariable, _name, _reaching_copies(_name))


@contextmanager
def first_replica_only() -> Iterator[None]:
    """Trace a step as a single replica runs it: in the context, writes do not reach the copies."""
    token = _first_only.set(True)
    try:
        yield
    finally:
        _first_only.reset(token)


def copy_on(held: Any, device: str) -> Any:
    """The copy that is on a device."""
    wanted = DeviceName.parse(device)
    return next(copy for copy in each_copy(held) if DeviceName.parse(copy.device) == wanted)


def each_copy(held: Any) -> tuple[Any, ...]:
    """All copies, the first replica's first; only the variable itself if it is not mirrored."""
    return (held.first, *held.copies) if isinstance(held, MirroredVariable) else (held,)


def mirrored(copies: Sequence[Any]) -> Any:
    """A single variable for all copies, the first replica's first."""
    first, *others = copies
    return MirroredVariable(first, others) if others else first
