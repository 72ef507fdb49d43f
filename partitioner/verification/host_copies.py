"""The unplaced model with variables on the host: what XLA compiles in it cannot read those on planned devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from partitioner.emit.graph.variables import copied, held_variable, put, refresh_optimizer
from partitioner.emit.pipeline.microbatches import HOST


class HostCopies:
    """Copies of variables on the host, which take their place while the unplaced model is traced and runs.

    Args:
        variables: Variables of Keras, or of TensorFlow.
        optimizers: The optimizers that know some of them.
    """

    def __init__(self, variables: Sequence[Any], optimizers: Sequence[Any] = ()) -> None:
        self._variables, self._optimizers = variables, optimizers
        self._copies = [copied(held_variable(variable), HOST) for variable in variables]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the copies stand for the variables."""
        placed = [_held(variable) for variable in self._variables]
        self._put(self._copies)
        try:
            yield
        finally:
            self._put(placed)

    def _put(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            put(variable, value)
        for optimizer in self._optimizers:
            refresh_optimizer(optimizer)


def _held(variable: Any) -> Any:
    """What a variable holds now: of TensorFlow's, which will hold something else, its handle."""
    return variable._value if hasattr(variable, "_value") else SimpleNamespace(handle=variable.handle)
