"""The asynchronous training step of a placed model: its functions, made when first needed, and its replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from partitioner.emit.async_replicas import AsyncReplicas
from partitioner.emit.async_step import GradientStep, OwnVariables, SharedUpdate
from partitioner.emit.program import Arrange, PlacedProgram, Specs
from partitioner.ir.step import StepKind

_ANY_SHAPE: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCounts:
    """Updates applied so far.

    Attributes:
        num_updates: How many: one for every batch that a replica was given and that did not fail.
        staleness: How many of them at each staleness: the number of others applied between reading the parameters and
            applying what was computed from them.
    """

    num_updates: int
    staleness: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Batch:
    given: Any
    arguments: Specs
    functions: _Functions


@dataclass(frozen=True, slots=True)
class _Functions:
    """ConcreteFunctions for one signature: a gradient step for each replica, and the update."""

    gradients: Sequence[Any]
    update: Any


class _Worker:
    """A replica's part in `AsyncReplicas`."""

    def __init__(self, own: OwnVariables) -> None:
        self._own = own

    def pull(self) -> None:
        self._own.pull()

    def compute(self, batch: _Batch) -> tuple[Any, Any]:
        computed = batch.functions.gradients[self._own.number](*batch.arguments)
        return computed, partial(batch.functions.update, computed["needed"], computed["states"])

    def push(self, computed: tuple[Any, Any]) -> None:
        computed[1]()


class AsyncProgram:
    """Trains the variables of a program of one replica by several, each on the devices that a plan gives it.

    Args:
        program: The placed functions of the first replica; its variables become the shared ones.
        arrange: Says how all replicas run.
        num_replicas: How many there are.
        max_staleness: See `AsyncReplicas`.
    """

    def __init__(self, program: PlacedProgram, arrange: Arrange, *, num_replicas: int, max_staleness: int) -> None:
        self.num_replicas = num_replicas
        self._program, self._arrange, self._max_staleness = program, arrange, max_staleness
        self.forget()

    def forget(self) -> None:
        """Drop what depends on loss and optimizer, which are about to change, and count anew."""
        self._functions: dict[str, _Functions] = {}
        self._own = [OwnVariables(number) for number in range(self.num_replicas)]
        self._replicas = AsyncReplicas([_Worker(own) for own in self._own], self._max_staleness)
        self._is_fresh = True

    @property
    def counts(self) -> UpdateCounts:
        """Updates applied so far."""
        staleness = dict(sorted(self._replicas.staleness.items()))
        return UpdateCounts(num_updates=sum(staleness.values()), staleness=staleness)

    def submit(self, given: Any, arguments: Specs, specs: Specs) -> None:
        """Give one replica's batch to whichever is free first.

        Args:
            given: Is returned with the results.
            arguments: Of the training step.
            specs: Of these.

        Raises:
            Exception: What a replica's step raised; none runs any more then.
        """
        self._replicas.submit(_Batch(given, arguments, self._functions_for(specs)))

    def finished(self) -> Iterable[tuple[Any, dict[str, Any]]]:
        """Batches that have been applied since the last call, and their results; at first, waits for one.

        Raises:
            Exception: As `submit` does.
        """
        found = self._finished(at_least=int(self._is_fresh))
        self._is_fresh = False
        return found

    def join(self) -> Iterable[tuple[Any, dict[str, Any]]]:
        """Wait until every batch is applied; those not yet returned by `finished`.

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

    def _functions_for(self, specs: Specs) -> _Functions:
        key = repr(specs)
        if key not in self._functions:
            self._replicas.join()  # replicas that run use the variables that there are
            step = self._program.step(StepKind.TRAIN, specs)
            execution = self._arrange(step)
            update = SharedUpdate(step, execution)
            gradients = [
                tf.function(GradientStep(step, execution, own, update.needed), autograph=False)
                .get_concrete_function(*specs)
                for own in self._own
            ]  # fmt: skip
            outputs = gradients[0].structured_outputs
            open_specs = tf.nest.map_structure(
                lambda value: tf.TensorSpec(_ANY_SHAPE, value.dtype), (outputs["needed"], outputs["states"])
            )
            function = tf.function(update, autograph=False).get_concrete_function(*open_specs)
            self._functions[key] = _Functions(gradients, function)
        return self._functions[key]
