"""Move variables and optimizer slots to their planned devices, with a copy for each replica."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from partitioner.deferred_variables import creation_number, initial_value, is_deferred
from partitioner.emit.graph.mirrored_variable import each_copy, mirrored
from partitioner.errors import ModelError
from partitioner.ir.devices import DeviceName
from partitioner.spelling import argument


def move_variables(homes: Iterable[tuple[Any, Sequence[str]]]) -> None:
    """Put each variable on its device, values unchanged; a deferred value is made there.

    The variable objects stay; what they hold is replaced.

    Args:
        homes: Pairs of a variable (Keras' object, or TensorFlow's where a layer made it itself) and its device in each
            replica.

    Raises:
        ModelError: A variable that Keras does not own would have to have a copy.
    """
    # Initializers may draw from one generator, so they run in the order in which they would have run.
    for variable, devices in sorted(homes, key=lambda home: creation_number(held_variable(home[0]))):
        held = held_variable(variable)
        if is_deferred(held):
            first = copied(held, devices[0])
            put(variable, mirrored([first, *(copied(first, device) for device in devices[1:])]))
            continue
        copies = each_copy(held)
        wanted = [DeviceName.parse(device) for device in devices]
        if [DeviceName.parse(copy.device) for copy in copies] == wanted:
            continue
        if not hasattr(variable, "_value") and len(wanted) > 1:
            raise ModelError(
                f"the variable {variable.name!r} is a tf.Variable that Keras does not own, and replicas need copies",
                notes=[f"it is planned on {' and '.join(devices)}"],
                help=f"create it with self.add_weight(...) in its layer, or plan with {argument('replicas', 1)}",
            )
        there = {DeviceName.parse(copy.device): copy for copy in reversed(copies)}
        put(variable, mirrored([there[name] if name in there else copied(held, name.canonical) for name in wanted]))


def put(variable: Any, held: Any) -> None:
    """Let a variable hold what another TensorFlow variable holds: the variable in Keras' variable, or the handle.

    Neither library has a public way.
    """
    if hasattr(variable, "_value"):
        variable._value = held
    else:
        variable._handle = held.handle


def copied(held: Any, device: str) -> Any:
    """A TensorFlow variable like another, on a device; the value of a deferred one is made there."""
    with tf.device(device):
        return tf.Variable(
            initial_value(held), trainable=held.trainable, name=held.name.split(":")[0], dtype=held.dtype
        )


def held_variable(variable: Any) -> Any:
    """The TensorFlow variable inside Keras' variable, or the TensorFlow variable itself."""
    return variable.value if hasattr(variable, "path") else variable


def contents(variable: Any) -> Any:
    """What `put` replaces; quick to ask for, as every step does."""
    return variable._value if hasattr(variable, "_value") else variable._handle


def forget_functions(model: Any) -> None:
    """Let Keras trace the functions of the unplaced model anew: they hold the variables that it had before they moved.

    `generate_function` is that of the models of keras_hub.
    """
    for name in ("train_function", "test_function", "predict_function", "generate_function"):
        if vars(model).get(name) is not None:
            setattr(model, name, None)


def refresh_optimizer(optimizer: Any) -> None:
    """Let a built optimizer find its variables again after they moved: it looks them up by TensorFlow's identity."""
    if optimizer is not None and optimizer.built and hasattr(optimizer, "_trainable_variables_indices"):
        optimizer._trainable_variables_indices = {
            optimizer._var_key(variable): index for index, variable in enumerate(optimizer._trainable_variables)
        }
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        refresh_optimizer(inner)


def variable_homes(placement: Mapping[str, str], uses: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    """Device of each variable: the device of the ops that take its handle.

    Args:
        placement: Device by op name.
        uses: For each op, its name and the names of its variables.
    """
    return {variable: placement[op] for op, variables in uses for variable in variables}
