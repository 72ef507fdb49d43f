"""Replicas that update shared variables without waiting for each other: a thread each, and a bound on staleness.

A replica may be lost and come back: its batch goes to another one, and since only `push` changes what is shared, and
needs nothing of the replica, each batch is applied once.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from partitioner.emit.keras.options import as_given

_RETRY_SECONDS = 1.0


class LostReplicaError(Exception):
    """A replica is gone, for now, and with it what it computed."""


class Worker(Protocol):
    """One replica, with variables of its own."""

    def pull(self) -> None:
        """Take over what the shared variables hold."""
        ...

    def compute(self, batch: Any) -> Any:
        """Run forward and backward; change nothing that is shared.

        Raises:
            LostReplicaError: It cannot: another replica has to.
        """
        ...

    def push(self, computed: Any) -> None:
        """Update the shared variables by what `compute` returned."""
        ...

    def is_back(self) -> bool:
        """Whether it can compute, after it was lost."""
        ...


class AsyncReplicas:
    """A thread for each replica that takes a batch, pulls, computes and pushes, until there is no batch left.

    Pulls and pushes happen one at a time, so that a replica computes with what some number of whole updates have left.
    The *staleness* of an update is how many others were applied between its pull and its push, and it is at most N,
    `max_staleness` ("stale synchronous parallel", Ho et al. 2013, bounds clocks of replicas instead). Let v be the
    number of updates applied, F that of replicas that compute, and p what v was when one of these pulled. A replica
    takes a batch and pulls only if v - p + F <= N for each of the others; else it waits, and then pulls what is newer.

    Why that bounds it: v - p + (F - 1) <= N holds for whoever computes, all the time. It holds after a pull, by the
    rule, for the others, and for the one that pulled too (v - p is 0 and F - 1 is how many others compute, which by the
    rule for any of them is at most N). Another's push adds one to v and takes one from F. So a replica that pushes
    finds v - p <= N - (F - 1) <= N. Nobody waits between pull and push, and where nobody computes anyone may pull: no
    replica can wait for ever. With N = 0 replicas take turns, each on the parameters that the one before has left.

    A lost replica's batch is the next to be taken. v - p + (F - 1) only becomes less by that, for the others.

    Args:
        workers: The replicas.
        max_staleness: N.

    Attributes:
        staleness: How many updates were applied at each staleness; together, all of them.
        updates: How many of each replica.
        losses: How often each replica was lost.
        returns: How often each came back.
    """

    def __init__(self, workers: Sequence[Worker], max_staleness: int) -> None:
        self.staleness: Counter[int] = Counter()
        self.updates, self.losses, self.returns = ([0] * len(workers) for _ in range(3))
        self._workers, self._max_staleness = list(workers), max_staleness
        self._changed = threading.Condition()  # holding it is the right to pull, to push and to change what follows
        self._version = 0
        self._waiting: deque[Any] = deque()
        self._pulled: dict[int, int] = {}
        self._lost: set[int] = set()
        self._finished: list[tuple[Any, Any]] = []
        self._threads: list[threading.Thread] = []
        self._ending = self._stopping = False
        self._error: BaseException | None = None

    def submit(self, batch: Any) -> None:
        """Give a batch to whichever replica is free first; waits while as many wait as there are replicas.

        Raises:
            Exception: What a replica's step raised; all have stopped then, and batches not yet pushed are dropped.
        """
        if not self._threads:
            self._start()
        self._wait(lambda: len(self._waiting) < len(self._workers))
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify_all()

    def finished(self, *, at_least: int = 0) -> list[tuple[Any, Any]]:
        """Batches pushed since the last call and what was computed for them; waits for that many, or else all.

        Raises:
            Exception: As `submit` does.
        """
        self._wait(lambda: len(self._finished) >= at_least or not (self._waiting or self._pulled))
        with self._changed:
            found, self._finished = self._finished, []
        return found

    def join(self) -> None:
        """Wait until every batch is pushed.

        Raises:
            Exception: As `submit` does.
        """
        if self._threads:
            self._wait(lambda: not (self._waiting or self._pulled))
            self._end()

    def lose(self, number: int) -> None:
        """Take a replica for lost, until it is back; a batch that it computes goes to another."""
        with self._changed:
            self._pulled.pop(number, None)
            self._lost.add(number)
            self.losses[number] += 1
            self._changed.notify_all()

    def is_lost(self, number: int) -> bool:
        """Whether a replica is lost."""
        return number in self._lost

    def stop(self) -> None:
        """Drop what is not pushed; whatever computes or pushes ends first.

        It is not cancelled: TensorFlow knows one cancellation for all threads, and would cancel what others run too.
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
                if not self._stopping:  # else it is only told that it was cancelled
                    self._error = error
                    self._stopping = True
                self._changed.notify_all()

    def _is_there(self, number: int) -> bool:
        """Wait for a replica that is lost; whether it is back before all batches are pushed."""
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
        """One batch; whether there may be another."""
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
