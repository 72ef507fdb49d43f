"""Build a callable TensorFlow function from a captured step and a placement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from partitioner.emit.graph.calls import with_called_loops
from partitioner.emit.graph.graph_def import add_waits, copy_to_loops, place_graph_def, register_functions
from partitioner.emit.graph.variables import held_variable, move_variables, variable_homes
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.pipeline.staged_step import StagedStep
from partitioner.emit.xla.calls import with_compiled_calls
from partitioner.emit.xla.confirm import known_of
from partitioner.emit.xla.refusals import kept_plain
from partitioner.ir.execution import Execution
from partitioner.ir.graph_def import producer, prune, tensor_name
from partitioner.ir.step import CapturedStep
from partitioner.stages.delayed_gradients import delayed_gradients
from partitioner.stages.run_ahead import order_among, run_ahead_limits

_numbers = itertools.count()


def emit_function(
    step: CapturedStep,
    execution: Execution,
    *,
    results: Sequence[str],
    side_effects: bool = True,
    loops_called: bool = False,
) -> Any:
    """A ConcreteFunction of (x, y, sample_weight) that computes `step` with every op on its device.

    It is a single placed graph, or calls of stage functions if the execution is staged.

    Captured variables are moved to their devices first. Gradients come from the step itself; do not differentiate the
    function from outside: the backward ops would have no devices.

    Args:
        step: The step to compute.
        execution: Device of every op of `step.graph`, microbatches and schedule.
        results: The step's outputs (`y_pred`, `loss`, `gradients`) to return, in a dict; outputs it does not have are
            left out.
        side_effects: Whether to run the writes of the step (updates, moving averages, random state).
        loops_called: Whether each loop is a function that is called, if the execution is not staged.

    Raises:
        ModelError: A variable that Keras does not own would have to have copies.
        UsageError: The step cannot run in that many microbatches.
    """
    place_variables(step, execution)
    if execution.is_staged:
        staged = StagedStep(step, execution, results=results, side_effects=side_effects)
        return tf.function(lambda *arguments: staged(*arguments), autograph=False).get_concrete_function(*step.specs)
    wanted = {key: step.outputs[key] for key in results if key in step.outputs}
    fetches = [name for name in tf.nest.flatten(wanted) if name is not None]
    roots = [*map(producer, fetches), *(step.side_effects if side_effects else ())]
    graph_def = prune(step.graph_def, [*roots, *map(producer, step.inputs)])
    graph_def = place_graph_def(
        graph_def, execution.placement, suffix=f"placed_{next(_numbers)}", host_of=execution.host_of
    )
    copy_to_loops(graph_def, map(producer, step.inputs))
    live = {node.name for node in graph_def.node}
    ops = [op.name for op in step.graph.ops if op.name in live]
    order, placement = order_among(execution.placement.values()), execution.placement
    delayed = delayed_gradients(step.graph, placement, live) if execution.delays_gradients else {}
    limits = run_ahead_limits(step.graph, ops, order=order, placement=placement, delayed=delayed)
    add_waits(graph_def, {name: waits for name, waits in limits.items() if placement[name] not in execution.compiled})
    add_waits(graph_def, delayed)
    outside = dict(step.captures) | {p: held_variable(v).handle for p, v in step.variables.items()}
    called = with_compiled_calls(
        graph_def,
        execution.compiled,
        fetched=fetches,
        kept_out=kept_plain(step, execution.compiled),
        known=partial(known_of, step, outside=outside),
    )
    if loops_called:
        fetched = [tensor_name(called.tensor.get(name, name)) for name in fetches]
        called = called.then(with_called_loops(called.graph_def, fetched=fetched))
    graph_def = called.graph_def
    register_functions(graph_def)
    live = {node.name for node in graph_def.node}

    def run(*arguments: Any) -> dict[str, Any]:
        graph = tf.compat.v1.get_default_graph()
        flat = [value for value in tf.nest.flatten(arguments) if value is not None]
        replaced = dict(zip(step.inputs, flat, strict=True))
        replaced |= {f"{name}:0": _captured(graph, external) for name, external in outside.items() if name in live}
        made = [tensor_name(called.tensor.get(name, name)) for name in fetches]
        tensors = tf.graph_util.import_graph_def(graph_def, input_map=replaced, return_elements=made, name="")
        by_name = dict(zip(fetches, tensors, strict=True))
        return {
            key: tf.nest.map_structure(lambda name: None if name is None else by_name[name], value)
            for key, value in wanted.items()
        }

    return tf.function(run, autograph=False).get_concrete_function(*step.specs)


def _captured(graph: Any, external: Any) -> Any:
    """What stands for a tensor from outside: an argument, or for a small one a constant, which needs a device."""
    with tf.device(None if external.dtype == tf.resource else HOST):
        return graph.capture(external)


def emit_stepwise(step: CapturedStep, execution: Execution, *, results: Sequence[str]) -> Any:
    """The function of `emit_function`, but every TensorFlow function in it is called from Python.

    TensorFlow records where ops ran only for functions that Python calls.
    """
    if not execution.is_staged:
        return emit_function(step, execution, results=results)
    place_variables(step, execution)
    return StagedStep(step, execution, results=results)


def place_variables(step: CapturedStep, execution: Execution) -> None:
    """Move the variables of `step` to the devices of the ops that use them, in every replica."""
    homes = variable_homes(execution.placement, ((op.name, op.variables) for op in step.graph.ops))
    move_variables(
        (variable, execution.all_devices(homes[step.variable_names[placeholder]]))
        for placeholder, variable in step.variables.items()
        if step.variable_names[placeholder] in homes
    )
