"""Trace the update of one variable of each kind, and copy its ops for the variables that are alike.

Keras traces an update op by op for every variable, and a large model has hundreds with the same shape. A copy has the
ops, attributes and names that Keras would have made, in the same order.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from partitioner.capture.trace.gradients import replace_while

_patching = threading.RLock()
_optimizers = keras.optimizers
# What these do to a variable depends on its shape and type alone. Muon, say, goes by names as well.
_TREAT_ALIKE = (
    _optimizers.SGD,
    _optimizers.RMSprop,
    _optimizers.Adam,
    _optimizers.AdamW,
    _optimizers.Adamax,
    _optimizers.Nadam,
    _optimizers.Adagrad,
    _optimizers.Adadelta,
    _optimizers.Lion,
)
_NUMBER = re.compile(r"_\d+$")


@contextmanager
def copied_updates() -> Iterator[None]:
    """While this lasts, optimizers of Keras' own classes trace what they do to variables of a kind once."""
    kinds = {next(base for base in kind.__mro__ if "update_step" in vars(base)) for kind in _TREAT_ALIKE}
    with _patching, ExitStack() as undo:
        known: dict[tuple[object, ...], _Update] = {}
        for kind in kinds:
            replace_while(undo, kind, "update_step", _traced_once(vars(kind)["update_step"], known))
        yield


def _traced_once(update_step: Callable[..., Any], known: dict[tuple[object, ...], _Update]) -> Callable[..., Any]:
    def run(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        if type(optimizer) not in _TREAT_ALIKE or not tf.is_symbolic_tensor(gradient):
            update_step(optimizer, gradient, variable, learning_rate)
            return
        own = _Own(gradient, _variables(optimizer, variable))
        key = (id(graph), id(optimizer), gradient.shape, gradient.dtype, variable.shape, variable.dtype)
        if key in known:
            known[key].copy(graph, own)
            return
        start = graph.num_operations()
        update_step(optimizer, gradient, variable, learning_rate)
        if (made := _Update.of(graph, graph.get_operations()[start:], own)) is not None:
            known[key] = made

    return run


def _variables(optimizer: Any, variable: Any) -> dict[str, Any]:
    """A trained variable and its slots, by the attribute of the optimizer that has them.

    Its list of all its variables, which may be as long by chance, begins with those that all updates share.
    """
    index = optimizer._get_variable_index(variable)
    count = len(optimizer._trainable_variables)
    lists = {name: held for name, held in vars(optimizer).items() if isinstance(held, list) and len(held) == count}
    lists.pop("_variables", None)
    slots = {name: held[index].value for name, held in lists.items() if isinstance(held[index], keras.Variable)}
    return slots | {"": variable}


@dataclass(frozen=True, slots=True)
class _Own:
    """What belongs to a single variable: its gradient, itself and its slots."""

    gradient: Any
    variables: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Made:
    """The output of an op of an update."""

    op: int
    output: int


@dataclass(frozen=True, slots=True)
class _Handle:
    """The handle of a variable or slot."""

    name: str


@dataclass(frozen=True, slots=True)
class _Op:
    """An op of an update; its inputs are as above, `None` for the gradient, or tensors that all variables share."""

    name: str
    type: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    definition: Any


@dataclass(frozen=True, slots=True)
class _Update:
    """The ops of the update of one variable, named within the scope around them."""

    ops: tuple[_Op, ...]

    @classmethod
    def of(cls, graph: Any, ops: Sequence[Any], own: _Own) -> _Update | None:
        """The update that made these ops; None if it is not to be copied."""
        scope = graph.get_name_scope()
        externals = {id(placeholder): external for external, placeholder in graph.captures}
        ops = [op for op in ops if not (op.type == "Placeholder" and id(op.outputs[0]) in externals)]
        names = {id(held.handle): name for name, held in own.variables.items()}
        sources: dict[int, Any] = {id(own.gradient): None}
        for placeholder, external in externals.items():
            if id(external) in names:
                sources[placeholder] = _Handle(names[id(external)])
        for index, op in enumerate(ops):
            sources |= {id(tensor): _Made(index, output) for output, tensor in enumerate(op.outputs)}
        if not all(op.name.startswith(f"{scope}/") for op in ops) or any(op.control_inputs for op in ops):
            return None
        return cls(
            ops=tuple(
                _Op(
                    name=op.name.removeprefix(f"{scope}/"),
                    type=op.type,
                    inputs=tuple(sources.get(id(tensor), tensor) for tensor in op.inputs),
                    attributes=dict(op.node_def.attr),
                    definition=op.op_def,
                )
                for op in ops
            )
        )

    def copy(self, graph: Any, own: _Own) -> None:
        """Make the ops again for another variable."""
        names, made = _Names(graph), list[Any]()
        create = graph._create_op_internal  # half of the time of `create_op` is for its deprecated arguments
        for op in self.ops:
            name = names(op.name)
            inputs = [self._input(graph, source, own, made, name) for source in op.inputs]
            made.append(create(op.type, inputs, name=f"{name}/", attrs=op.attributes, op_def=op.definition).outputs)

    @staticmethod
    def _input(graph: Any, source: Any, own: _Own, made: Sequence[Any], name: str) -> Any:
        match source:
            case None:
                return own.gradient
            case _Made(op, output):
                return made[op][output]
            case _Handle(of):
                with graph.name_scope(f"{name}/"):
                    return graph.capture(own.variables[of].handle, name="resource")
        return source


class _Names:
    """Names that a graph gives to ops and to the scopes in them, when they are made again."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            scope, _, last = name.rpartition("/")
            self._known[name] = f"{self(scope)}/{last}" if scope else self._graph.unique_name(_NUMBER.sub("", last))
        return self._known[name]
