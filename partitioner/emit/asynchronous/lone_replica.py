"""One replica of an asynchronous training step: its variables, its functions, and the workers it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from partitioner.emit.asynchronous.rejoin import are_lost, rejoin
from partitioner.emit.asynchronous.replicas import LostReplicaError
from partitioner.emit.asynchronous.step import GradientStep, OwnVariables
from partitioner.emit.cluster.cluster import workers_of
from partitioner.emit.cluster.lost_worker import forget_errors
from partitioner.emit.cluster.silent_worker import cutting_off_silent
from partitioner.emit.keras.program import Specs
from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution
from partitioner.ir.step import CapturedStep


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A training step for arguments of some specs, and its `update` function, with the tensors and states it takes."""

    step: CapturedStep
    execution: Execution
    needed: Sequence[str]
    update: Any


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of a step; `given` identifies them for the caller."""

    given: Any
    arguments: Specs
    signature: Signature


class LoneReplica:
    """A replica's part in `AsyncReplicas`.

    Args:
        number: Number of the replica.
        devices: Canonical names of its devices.

    Attributes:
        tasks: The worker processes among them.
    """

    def __init__(self, number: int, devices: Iterable[str]) -> None:
        names = map(DeviceName.parse, devices)
        self.tasks = frozenset((name.job, name.task) for name in names if not name.is_local)
        self._number = number
        self._own = self._new_variables()
        self._gradients: dict[Signature, Any] = {}

    def learn(self, signature: Signature) -> bool:
        """Make the functions of `compute` for a signature; False if the replica is lost and will make them later."""
        self._gradients[signature] = None
        try:
            with self._raising_if_lost():
                step = GradientStep(signature.step, signature.execution, self._own, signature.needed)
                function = tf.function(step, autograph=False)
                self._gradients[signature] = function.get_concrete_function(*signature.step.specs)
        except LostReplicaError:
            return False
        return True

    def pull(self) -> None:
        """As `OwnVariables.pull`."""
        self._own.pull()

    def compute(self, batch: Batch) -> tuple[Any, Any]:
        """The results of the step, and a call that applies them to the shared variables."""
        with self._raising_if_lost(), cutting_off_silent(workers_of(self.tasks)):
            self._own.receive()
            computed = self._gradients[batch.signature](*batch.arguments)
        return computed, partial(batch.signature.update, computed["needed"], computed["states"])

    def push(self, computed: tuple[Any, Any]) -> None:
        """Update the shared variables."""
        computed[1]()

    def is_back(self) -> bool:
        """Whether all its workers answer again; variables and functions are then made anew."""
        if not rejoin(self.tasks):
            return False
        self._own = self._new_variables()
        return all(self.learn(signature) for signature in list(self._gradients))

    @contextmanager
    def _raising_if_lost(self) -> Iterator[None]:
        """Raise a LostReplicaError where TensorFlow fails because a worker is gone, together with its variables."""
        try:
            yield
        except tf.errors.OpError as error:
            if are_lost(self.tasks):
                forget_errors()
                raise LostReplicaError from error
            raise

    def _new_variables(self) -> OwnVariables:
        return OwnVariables(self._number, is_remote=bool(self.tasks))
