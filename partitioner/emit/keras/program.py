"""The placed functions of a model, one per kind of step and signature, emitted at their first use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

# TensorFlow exports no way to ask for it.
from tensorflow.python.ops.summary_ops_v2 import has_default_writer

from partitioner.emit.graph.function import emit_function, place_variables
from partitioner.emit.graph.mirrored_variable import each_copy
from partitioner.emit.graph.variables import contents, forget_functions, held_variable, refresh_optimizer
from partitioner.errors import UsageError
from partitioner.ir.execution import Execution
from partitioner.ir.step import CapturedStep, StepKind

Specs = tuple[Any, Any, Any]
Capture = Callable[[StepKind, Specs], CapturedStep]
"""Traces a kind of step of the model for arguments of the given specs."""
Arrange = Callable[[CapturedStep], Execution]
"""Gives the execution of a step in this process: a device for every op, microbatches, schedule."""


class Program(Protocol):
    """The functions that a placed model runs."""

    @property
    def devices(self) -> Mapping[str, str]:
        """The device that runs in place of each planned device, in stage order."""
        ...

    @property
    def is_staged(self) -> bool:
        """Whether batches pass in microbatches, as calls of stage functions."""
        ...

    def function(self, kind: StepKind, specs: Specs, *, results: Sequence[str] | None = None) -> Any:
        """The ConcreteFunction for a kind of step on arguments of `specs`; see `PlacedProgram.function`."""
        ...

    def standardize(self, kind: StepKind, arguments: Specs) -> Specs:
        """Arguments with the dtypes the program prefers (labels as int32)."""
        ...

    def signatures(self) -> list[tuple[StepKind, Specs]]:
        """One signature per kind of step that the program can run."""
        ...

    def copies(self) -> dict[str, tuple[Any, ...]]:
        """The TensorFlow variable of each replica, for every variable that the functions use."""
        ...

    def forget(self) -> None:
        """Drop functions that depend on loss and optimizer, before these change."""
        ...

    def refuse_moved(self) -> None:
        """Refuse to run on variables that the model no longer has; see `PlacedProgram.refuse_moved`."""
        ...


class PlacedProgram:
    """Functions of a live Keras model, traced and placed on demand.

    Args:
        capture: Traces a step.
        arrange: Gives the execution of a step.
        model: The model whose variables move.
        devices: The device that runs in place of each planned device, in stage order.
        optimizer: Returns the optimizer in force, or None.
        kinds: The kinds of step that the model can do.
    """

    def __init__(
        self,
        capture: Capture,
        arrange: Arrange,
        *,
        model: keras.Model,
        devices: Mapping[str, str],
        optimizer: Callable[[], Any],
        kinds: Collection[StepKind] = tuple(StepKind),
    ) -> None:
        self.devices = dict(devices)
        self.is_staged = False
        self._model, self._kinds = model, kinds
        self._capture, self._arrange, self._optimizer = capture, arrange, optimizer
        self._steps: dict[tuple[StepKind, str], CapturedStep] = {}
        self._contents: list[tuple[Any, Any]] = []
        self._functions: dict[tuple[StepKind, str, tuple[str, ...], frozenset[str]], Any] = {}

    def add(self, step: CapturedStep) -> None:
        """Add a captured step, and move its variables to their devices now."""
        self.refuse_moved()
        self._steps[_key(step.kind, step.specs)] = step
        execution = self._arrange(step)
        self.is_staged = self.is_staged or execution.is_staged  # stays so when `forget` drops every step
        place_variables(step, execution)
        self._contents = [(variable, contents(variable)) for variable in self._variables()]
        forget_functions(self._model)
        for optimizer in (self._optimizer(), *step.optimizers):
            refresh_optimizer(optimizer)

    def refuse_moved(self) -> None:
        """Refuse to run on variables that the model no longer has.

        Raises:
            UsageError: The model was placed again, by a plan that has its variables elsewhere.
        """
        if any(contents(variable) is not held for variable, held in self._contents):
            raise UsageError(
                f"the model {self._model.name!r} was placed again, and its variables have moved",
                help="use what place() returned last, or place the model by this plan again",
            )

    def _variables(self) -> list[Any]:
        """Keras' variable, or TensorFlow's, of all that the steps use."""
        return list({id(v): v for step in self._steps.values() for v in step.variables.values()}.values())

    def step(self, kind: StepKind, specs: Specs) -> CapturedStep:
        """The captured step behind `function`.

        It takes any number of rows, unless the model itself does not. A step with loops is traced for the number in
        `specs` too, if there is one: its gradients keep shapes of every trip that are constants then. Calls of stages
        take any number.
        """
        if _key(kind, specs) in self._steps:
            return self._step(kind, specs)
        step = self._step(kind, any_rows(specs))
        if step.graph.runs and not self._arrange(step).is_staged:
            return self._step(kind, specs)
        return step

    def _step(self, kind: StepKind, specs: Specs) -> CapturedStep:
        key = _key(kind, specs)
        step = self._steps.get(key)
        if step is None or (step.lacks_summaries and has_default_writer()):
            self.add(self._capture(kind, specs))
            self._functions = {made: function for made, function in self._functions.items() if made[:2] != key}
        return self._steps[key]

    def execution(self, step: CapturedStep) -> Execution:
        """How a step of this program runs."""
        return self._arrange(step)

    def function(self, kind: StepKind, specs: Specs, *, results: Sequence[str] | None = None) -> Any:
        """The ConcreteFunction for a kind of step on arguments of `specs`.

        Args:
            kind: The kind of step.
            specs: Specs of its arguments.
            results: Outputs to return, in a dict; by default those that loss and metrics need.

        Raises:
            ModelError: The step cannot be traced.
            UsageError: It cannot run in the planned microbatches.
        """
        with tf.init_scope():
            step = self.step(kind, specs)
            wanted = step.results if results is None else tuple(results)
            execution = self._arrange(step)
            key = (*_key(kind, step.specs), wanted, frozenset(execution.compiled))
            if key not in self._functions:
                self._functions[key] = emit_function(step, execution, results=wanted)
        return self._functions[key]

    def standardize(self, kind: StepKind, arguments: Specs) -> Specs:
        """Arguments with the dtypes of an existing signature, where only the width of integers differs."""
        signatures = [step.specs for (step_kind, _), step in self._steps.items() if step_kind is kind]
        return cast_integers(arguments, signatures[0]) if signatures else arguments

    def signatures(self) -> list[tuple[StepKind, Specs]]:
        """The first signature of each kind of step; a training signature also serves evaluation and prediction."""
        first: dict[StepKind, Specs] = {}
        for (kind, _), step in self._steps.items():
            first.setdefault(kind, step.specs)
        if StepKind.TRAIN in first:
            first.setdefault(StepKind.EVALUATE, first[StepKind.TRAIN])
        for specs in list(first.values())[:1]:
            first.setdefault(StepKind.PREDICT, (specs[0], None, None))
        return [(kind, specs) for kind, specs in first.items() if kind in self._kinds]

    def copies(self) -> dict[str, tuple[Any, ...]]:
        """The TensorFlow variable of each replica, for every variable that the functions use, by its path."""
        variables: dict[int, tuple[str, tuple[Any, ...]]] = {}
        for step in self._steps.values():
            for placeholder, variable in step.variables.items():
                held = held_variable(variable)
                variables.setdefault(id(held), (step.variable_names[placeholder], each_copy(held)))
        names: dict[str, int] = {}
        return {_numbered(name, names): copies for name, copies in variables.values()}

    def captured_variables(self) -> list[Any]:
        """Every TensorFlow variable that the functions use, in every replica."""
        return [copy for copies in self.copies().values() for copy in copies]

    def forget(self) -> None:
        """Drop functions that depend on loss and optimizer, before these change."""
        self._steps = {key: step for key, step in self._steps.items() if key[0] is StepKind.PREDICT}
        self._functions = {key: made for key, made in self._functions.items() if key[0] is StepKind.PREDICT}


def any_rows(specs: Any) -> Any:
    """The specs of batches with any number of rows."""

    def open_batch(spec: Any) -> Any:
        return spec if spec is None or not spec.shape.rank else tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)

    return tf.nest.map_structure(open_batch, specs)


def cast_integers(arguments: Any, specs: Any) -> Any:
    """Cast integer tensors of `arguments` to the width in `specs`, when both have the same structure."""
    given, flat_specs = tf.nest.flatten(arguments), tf.nest.flatten(specs)
    if len(given) != len(flat_specs):
        return arguments
    cast = [
        tf.cast(value, spec.dtype)
        if value is not None and spec is not None and value.dtype.is_integer and spec.dtype.is_integer
        else value
        for value, spec in zip(given, flat_specs, strict=True)
    ]
    return tf.nest.pack_sequence_as(arguments, cast)


def _numbered(name: str, taken: dict[str, int]) -> str:
    """A name that no other variable has."""
    count = taken[name] = taken.get(name, -1) + 1
    return f"{name}_{count}" if count else name


def _key(kind: StepKind, specs: Specs) -> tuple[StepKind, str]:
    shapes = tf.nest.map_structure(lambda s: None if s is None else (s.dtype.name, str(s.shape)), specs)
    return kind, repr(shapes)
