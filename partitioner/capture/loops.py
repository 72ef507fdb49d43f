"""Rid loops of what their gradients bring along and nobody needs.

A model traced with an open batch does not know that two summands have one shape, so its gradients save both shapes and
sum over the axes along which one was broadcast: none. Outside of loops TensorFlow finds that out by itself; in a loop
it would do so in every trip, which took a small LSTM a tenth of its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# What TensorFlow knows of an op type is not public.
from tensorflow.python.framework import op_def_registry

from partitioner.capture.graph_def import READ
from partitioner.ir.graph_def import needed, producer, resolved


def is_idle_sum(op: Any) -> bool:
    """Whether an operation ends a sum over the axes along which something was broadcast, of which there are none.

    Of sizes of 1 nothing is said: with another batch size, such an axis may be broadcast.
    """
    if op.type != "Reshape" or op.inputs[0].op.type != "Sum":
        return False
    total = op.inputs[0].op
    if total.inputs[1].op.type != "BroadcastGradientArgs":
        return False
    before, after = total.inputs[0].shape, op.outputs[0].shape
    return bool(after.is_fully_defined() and before == after and all(size > 1 for size in after.as_list()))


def drop_idle_sums(graph_def: Any, idle: Mapping[str, Iterable[str]]) -> None:
    """Let what reads these sums read what they sum instead. Edits functions in place.

    Args:
        graph_def: Its library has the functions.
        idle: By the name of a function, its nodes of which `is_idle_sum` holds wherever it is run.
    """
    for function in graph_def.library.function:
        nodes = {node.name: node for node in function.node_def}
        through = {
            f"{name}:output:0": nodes[producer(nodes[name].input[0])].input[0]
            for name in idle.get(function.signature.name, ())
        }
        if through:
            _rewire(function, through)
            _prune(function)


def only_reads(node: Any, library: Mapping[str, Any]) -> bool:
    """Whether a NodeDef has no effect but that of the functions it runs, and these read variables at most."""
    names = [one.name for value in node.attr.values() for one in (value.func, *value.list.func) if one.name in library]
    return bool(names) and all(
        _is_stateless(inner.op) or inner.op == READ or only_reads(inner, library)
        for name in names
        for inner in library[name].node_def
    )


def _is_stateless(op_type: str) -> bool:
    definition = op_def_registry.get(op_type)
    return definition is not None and not definition.is_stateful


def _rewire(function: Any, through: Mapping[str, str]) -> None:
    for node in function.node_def:
        for index, read in enumerate(node.input):
            node.input[index] = resolved(read, through)
    for name, read in list(function.ret.items()):
        function.ret[name] = resolved(read, through)


def _prune(function: Any) -> None:
    """Drop what a function runs for nothing."""
    nodes = {node.name: node for node in function.node_def}
    roots = [*map(producer, function.ret.values()), *function.control_ret.values()]
    live = needed(nodes, roots, given={argument.name for argument in function.signature.input_arg})
    kept = [node for node in function.node_def if node.name in live]
    del function.node_def[:]
    function.node_def.extend(kept)
