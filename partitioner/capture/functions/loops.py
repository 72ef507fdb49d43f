"""Rid loops of what their gradients bring along and nobody needs.

A loop's gradient has the gradients of all that went into the loop, asked for or not: of an LSTM's input, a product in
every trip. And a model traced with an open batch does not know that two summands have one shape, so its gradients save
both shapes and sum over the axes along which one was broadcast: none. Outside of loops TensorFlow finds that out by
itself; in a loop it would do so in every trip, which took a small LSTM a tenth of its step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

# What TensorFlow knows of an op type is not public.
from tensorflow.python.framework import op_def_registry

from partitioner.capture.lower.graph_def import READ
from partitioner.ir.graph_def import needed, producer, resolved

_LOOPS = ("While", "StatelessWhile")


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


def pass_on_idle_variables(graph_def: Any, wanted: Iterable[str]) -> None:
    """Let loops hand on, unchanged, the variables that serve none but themselves. Edits nodes and functions in place.

    Such a variable begins as one that does serve (both lists), or as the loop did that it came from: so nothing is made
    for it, and no loop saves what its gradient no longer takes; `prune` finds what that leaves. A loop keeps its number
    of variables, and so the names of its results.

    Args:
        graph_def: A graph with the functions of its loops.
        wanted: Its tensors that are asked for.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    places = [(graph_def.node, wanted), *((one.node_def, one.ret.values()) for one in functions.values())]
    loops = [node for nodes, _ in places for node in nodes if node.op in _LOOPS]
    num_uses = Counter(loop.attr["body"].func.name for loop in loops)
    own = {name: function for name, function in functions.items() if num_uses[name] <= 1}
    while any(_pass_on_idle(nodes, results, own) for nodes, results in places):
        pass


def _pass_on_idle(nodes: Any, results: Iterable[str], functions: Mapping[str, Any]) -> bool:
    """Whether loops among the nodes of a graph or function had idle variables left; shared bodies stay as they are."""
    loops = {node.name: node for node in nodes if node.op in _LOOPS and node.attr["body"].func.name in functions}
    if not loops:
        return False
    read = {_place(one) for one in results} | {_place(one) for node in nodes for one in node.input}
    changed = False
    for loop in loops.values():
        body, condition = (functions[loop.attr[which].func.name] for which in ("body", "cond"))
        names = [argument.name for argument in body.signature.input_arg]
        ends = [result.name for result in body.signature.output_arg]
        serving = {index for index in range(len(names)) if (loop.name, index) in read}
        serving |= _arguments(condition, condition.ret.values()) | _arguments(body, ())
        while more := _arguments(body, [body.ret[ends[index]] for index in serving]) - serving:
            serving |= more
        is_list = [kind == tf.variant.as_datatype_enum for kind in loop.attr["T"].list.type]
        lists = [loop.input[index] for index in sorted(serving) if is_list[index]]
        for index in set(range(len(names))) - serving:
            if body.ret[ends[index]] != names[index]:
                body.ret[ends[index]] = names[index]
                changed = True
            source, output = _place(loop.input[index])
            begin = loops[source].input[output] if source in loops else loop.input[index]
            begin = lists[0] if lists and is_list[index] else begin
            if begin != loop.input[index]:
                loop.input[index] = begin
                changed = True
        _prune(body)
    return changed


def _arguments(function: Any, results: Iterable[str]) -> set[int]:
    """Which arguments some results of a function, and what it runs for its effects, are made from."""
    names = {argument.name: index for index, argument in enumerate(function.signature.input_arg)}
    nodes = {node.name: node for node in function.node_def}
    roots = [*map(producer, results), *function.control_ret.values()]
    live = needed(nodes, roots, given=names)
    reached = {producer(read) for name in live for read in nodes[name].input} | set(roots)
    return {names[name] for name in reached & names.keys()}


def _place(reference: str) -> tuple[str, int]:
    """Node and number of a loop's result, as graphs (`a`, `a:1`) and functions (`a:output:1`) refer to it."""
    name, *parts = reference.split(":")
    return name, int(parts[-1]) if parts else 0


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
