"""Replicas that update shared variables without waiting for each other: a thread each, and a bound on staleness.

A replica may be lost and come back: its batch goes to another replica. Only `push` changes shared variables, and it
needs nothing from the replica, so each batch is applied once.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from partitioner.emit.graph.rewriting import as_given

_RETRY_SECONDS = 1.0


class LostReplicaError(Exception):
    """A replica is lost for now, and with it what it computed."""


class Worker(Protocol):
    """A replica with variables of its own."""

    def pull(self) -> None:
        """Copy the shared variables to the replica."""
        ...

    def compute(self, batch: Any) -> Any:
        """Run forward and backward, without changing shared variables.

        Raises:
            LostReplicaError: The replica is lost; another replica must compute the batch.
        """
        ...

    def push(self, computed: Any) -> None:
        """Update the shared variables by what `compute` returned."""
        ...

    def is_back(self) -> bool:
        """Whether it can compute again after it was lost."""
        ...


class AsyncReplicas:
    """Runs a thread for each replica, which takes a batch, pulls, computes and pushes, until no batch is left.

    Pulls and pushes exclude each other, so a replica always computes with the result of a number of whole updates. The
    *staleness* of an update is the number of other updates applied between its pull and its push. It is at most N,
    `max_staleness` ("stale synchronous parallel", Ho et al. 2013, bounds clocks of replicas instead). Let v be the
    number of updates applied, F the number of replicas that compute, and p the value of v when such a replica pulled. A
    replica takes a batch and pulls only if v - p + F <= N for each of the others; else it waits, and pulls newer
    values.

    Proof of the bound: v - p + (F - 1) <= N always holds for each replica that computes. After a pull it holds by the
    rule for the others, and also for the replica that pulled (v - p is 0, and F - 1 is the number of others that
    compute, which by the rule for any of them is at most N). Another replica's push adds 1 to v and takes 1 from F. So
    a replica that pushes has v - p <= N - (F - 1) <= N. No replica waits between pull and push, and any replica may
    pull when none computes, so none waits for ever. With N = 0 replicas take turns, each on the parameters that the
    previous replica left.

    The batch of a lost replica is the next to be taken. For the others, v - p + (F - 1) only becomes less by that.

    Args:
        workers: The replicas.
        max_staleness: N.

    Attributes:
        staleness: Number of updates at each staleness.
        updates: Number of updates of each replica.
        losses: How often each replica was lost.
        returns: How often each replica came back.
    """

    def __init__(self, workers: Sequence[Worker], max_staleness: int) -> None:
        self.staleness: Counter[int] = Counter()
        self.updates, self.losses, self.returns = ([0] * len(workers) for _ in range(3))
        self._workers, self._max_staleness = list(workers), max_staleness
        self._changed = threading.Condition()  # held to pull, to push and to change what follows
        self._version = 0
        self._waiting: deque[Any] = deque()
        self._pulled: dict[int, int] = {}
        self._lost: set[int] = set()
        self._finished: list[tuple[Any, Any]] = []
        self._threads: list[threading.Thread] = []
        self._ending = self._stopping = False
        self._error: BaseException | None = None

    def submit(self, batch: Any) -> None:
        """Give a batch to the first free replica; waits while as many batches wait as there are replicas.

        Raises:
            Exception: The exception of a replica's step; all replicas have stopped, and batches not pushed are dropped.
        """
        if not self._threads:
            self._start()
        self._wait(lambda: len(self._waiting) < len(self._workers))
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify_all()

    def finished(self, *, at_least: int = 0) -> list[tuple[Any, Any]]:
        """Batches pushed since the last call and their results; waits for `at_least` of them, or for all there are.

        Raises:
            Exception: As `submit` does.
        """
        self._wait(lambda: len(self._finished) >= at_least or not (self._waiting or self._pulled))
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def join(self) -> None:
        """Wait until every batch is pushed.

        Raises:
            Exception: As `submit` does.
        """
        if self._threads:
            self._wait(lambda: not (self._waiting or self._pulled))
            self._end()

    def lose(self, number: int) -> None:
        """Count a replica as lost until it is back; the batch that it computes goes to another replica."""
        with self._changed:
            self._pulled.pop(number, None)
            self._lost.add(number)
            self.losses[number] += 1
            self._changed.notify_all()

    def is_lost(self, number: int) -> bool:
        """Whether a replica is lost."""
        return number in self._lost

    def stop(self) -> None:
        """Drop batches that are not pushed; running computations and pushes end first.

        They are not cancelled: TensorFlow has one cancellation for all threads, and would cancel other threads' calls.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._end()
        self._waiting.clear()
        self._pulled.clear()
        self._finished.clear()

    def _start(self) -> None:
        self._ending = self._stopping = False
        self._error = None
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"replica_{number}", daemon=True)
            for number in range(len(self._workers))
        ]
        for thread in self._threads:
            thread.start()

    def _end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or ready())
            error, self._error = self._error, None
        if error is not None:
            self.stop()
            raise error

    def _may_pull(self) -> bool:
        computing = self._pulled.values()
        return all(self._version - pulled + len(computing) <= self._max_staleness for pulled in computing)

    def _run(self, number: int) -> None:
        try:
            with as_given():
                while self._is_there(number) and self._step(number):
                    pass
        except BaseException as error:
            with self._changed:
                if not self._stopping:  # else the error only says that it was cancelled
                    self._error = error
                    self._stopping = True
                self._changed.notify_all()

    def _is_there(self, number: int) -> bool:
        """Wait for a lost replica; returns whether it is back before all batches are pushed."""
        while self.is_lost(number):
            if self._workers[number].is_back():
                with self._changed:
                    self._lost.remove(number)
                    self.returns[number] += 1
                    self._changed.notify_all()
            else:
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopping or self._ending, _RETRY_SECONDS):
                        return False
        return True

    def _step(self, number: int) -> bool:
        """Run a batch; returns whether there may be another."""
        worker = self._workers[number]
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (self._may_pull() if self._waiting else self._ending))
            if self._stopping or not self._waiting:
                return False
            batch = self._waiting.popleft()
            self._pulled[number] = self._version
            worker.pull()
            self._changed.notify_all()
        try:
            computed = worker.compute(batch)
        except LostReplicaError:
            with self._changed:
                self._waiting.appendleft(batch)
                self.lose(number)
            return True
        with self._changed:
            if self._stopping:
                return False
            worker.push(computed)
            self.staleness[self._version - self._pulled.pop(number)] += 1
            self.updates[number] += 1
            self._version += 1
            self._finished.append((batch, computed))
            self._changed.notify_all()
        return True
