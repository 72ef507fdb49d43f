"""The asynchronous training step of a placed model: its functions, made when first needed, and its replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from partitioner.emit.asynchronous.lone_replica import Batch, LoneReplica, Signature
from partitioner.emit.asynchronous.rejoin import check_workers
from partitioner.emit.asynchronous.replicas import AsyncReplicas
from partitioner.emit.asynchronous.step import SharedUpdate
from partitioner.emit.cluster.cluster import Task
from partitioner.emit.cluster.lost_worker import go_on_without_lost_workers
from partitioner.emit.keras.program import Arrange, PlacedProgram, Specs
from partitioner.ir.step import StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCounts:
    """Updates applied so far.

    Attributes:
        num_updates: Number of updates: each batch that did not fail makes an update.
        staleness: Number of updates at each staleness: the number of other updates applied between reading the
            parameters and applying the update computed from them.
        by_replica: Number of updates of each replica.
        losses: How often each replica lost a worker process.
        returns: How often each replica came back, after the worker was started again.
    """

    num_updates: int
    staleness: dict[int, int]
    by_replica: tuple[int, ...]
    losses: tuple[int, ...]
    returns: tuple[int, ...]


class AsyncProgram:
    """Trains the variables of a one-replica program by several replicas, each on its planned devices.

    Args:
        program: The placed functions of the first replica; its variables become the shared variables.
        arrange: Gives the execution of all replicas.
        devices: Canonical names of the devices of each replica; the first replica's devices are in this process.
        max_staleness: See `AsyncReplicas`.
    """

    def __init__(
        self, program: PlacedProgram, arrange: Arrange, *, devices: Sequence[Sequence[str]], max_staleness: int
    ) -> None:
        self.num_replicas = len(devices)
        self._program, self._arrange, self._max_staleness = program, arrange, max_staleness
        self._devices = devices
        self.forget()
        if self._tasks:
            go_on_without_lost_workers()

    def forget(self) -> None:
        """Drop functions that depend on loss and optimizer, before these change, and reset the counts."""
        self._signatures: dict[str, Signature] = {}
        self._lone = [LoneReplica(number, devices) for number, devices in enumerate(self._devices)]
        self._replicas = AsyncReplicas(self._lone, self._max_staleness)
        self._is_fresh = True

    @property
    def _tasks(self) -> set[Task]:
        return {task for replica in self._lone for task in replica.tasks}

    @property
    def counts(self) -> UpdateCounts:
        """Updates applied so far."""
        replicas = self._replicas
        return UpdateCounts(
            num_updates=sum(replicas.updates),
            staleness=dict(sorted(replicas.staleness.items())),
            by_replica=tuple(replicas.updates),
            losses=tuple(replicas.losses),
            returns=tuple(replicas.returns),
        )

    def submit(self, given: Any, arguments: Specs, specs: Specs) -> None:
        """Give a batch to the first free replica.

        Args:
            given: Identifies the batch; returned with the results.
            arguments: Arguments of the training step.
            specs: Specs of the arguments.

        Raises:
            UsageError: A worker does not answer, before anything was trained.
            Exception: The exception of a replica's step; all replicas have stopped then.
        """
        self._replicas.submit(Batch(given, arguments, self._signature(specs)))

    def finished(self) -> Iterable[tuple[Any, dict[str, Any]]]:
        """Batches applied since the last call, and their results; the first call waits for a batch.

        Raises:
            Exception: As `submit` does.
        """
        batches = self._finished(at_least=int(self._is_fresh))
        self._is_fresh = False
        return batches

    def join(self) -> Iterable[tuple[Any, dict[str, Any]]]:
        """Wait until every batch is applied; returns the batches that `finished` has not returned.

        Raises:
            Exception: As `submit` does.
        """
        self._replicas.join()
        self._is_fresh = True
        return self._finished()

    def stop(self) -> None:
        """Drop batches that are not yet applied."""
        self._replicas.stop()
        self._is_fresh = True

    def _finished(self, *, at_least: int = 0) -> Iterable[tuple[Any, dict[str, Any]]]:
        return [(batch.given, computed) for batch, (computed, _) in self._replicas.finished(at_least=at_least)]

    def _signature(self, specs: Specs) -> Signature:
        key = repr(specs)
        if key not in self._signatures:
            self._replicas.join()  # replicas that run use the variables that there are
            if not self._signatures:
                check_workers(self._tasks)
            step = self._program.step(StepKind.TRAIN, specs)
            execution = self._arrange(step)
            update = SharedUpdate(step, execution)
            function = tf.function(update, autograph=False).get_concrete_function(*update.specs)
            signature = Signature(step, execution, update.needed, function)
            for number, replica in enumerate(self._lone):
                if not replica.learn(signature) and not self._replicas.is_lost(number):
                    self._replicas.lose(number)
            self._signatures[key] = signature
        return self._signatures[key]
