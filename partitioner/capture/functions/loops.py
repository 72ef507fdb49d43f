"""Remove from loops what their gradients add and nothing needs.

A loop's gradient computes the gradients of all inputs of the loop, needed or not: for an LSTM's input, a product in
every trip. Further, a model traced with an open batch does not know that two summands have the same shape, so its
gradients save both shapes and sum over the broadcast axes, even if there are none. Outside of loops TensorFlow finds
that out once; in a loop it does so in every trip, which took a tenth of the step of a small LSTM.
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
    """Whether an operation is a sum over broadcast axes, and no axis was broadcast.

    False for axes of size 1: with another batch size, such an axis may be broadcast.
    """
    if op.type != "Reshape" or op.inputs[0].op.type != "Sum":
        return False
    total = op.inputs[0].op
    if total.inputs[1].op.type != "BroadcastGradientArgs":
        return False
    before, after = total.inputs[0].shape, op.outputs[0].shape
    return bool(after.is_fully_defined() and before == after and all(size > 1 for size in after.as_list()))


def drop_idle_sums(graph_def: Any, idle: Mapping[str, Iterable[str]]) -> None:
    """Let the readers of these sums read the summed tensor instead. Edits functions in place.

    Args:
        graph_def: Its library has the functions.
        idle: By function name, the nodes for which `is_idle_sum` holds wherever the function runs.
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
    """Let loops pass unused variables on unchanged. Edits nodes and functions in place.

    The initial value of such a variable becomes that of a used variable (for lists), or the input of the loop that made
    it. So nothing is computed for it, and no loop saves what no gradient reads; `prune` removes the rest. A loop keeps
    its number of variables, and so the names of its results.

    Args:
        graph_def: A graph with the functions of its loops.
        wanted: The tensors of the graph that are needed.
    """
    functions = {function.signature.name: function for function in graph_def.library.function}
    places = [
        (graph_def.node, wanted),
        *((function.node_def, function.ret.values()) for function in functions.values()),
    ]
    loops = [node for nodes, _ in places for node in nodes if node.op in _LOOPS]
    num_uses = Counter(loop.attr["body"].func.name for loop in loops)
    own = {name: function for name, function in functions.items() if num_uses[name] <= 1}
    while any(_pass_on_idle(nodes, results, own) for nodes, results in places):
        pass


def _pass_on_idle(nodes: Any, results: Iterable[str], functions: Mapping[str, Any]) -> bool:
    """Pass idle variables of these loops on; returns whether anything changed. Shared bodies stay as they are."""
    loops = {node.name: node for node in nodes if node.op in _LOOPS and node.attr["body"].func.name in functions}
    if not loops:
        return False
    read = {_place(name) for name in results} | {_place(name) for node in nodes for name in node.input}
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
    """The arguments on which some results and the side effects of a function depend."""
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
    """Whether a NodeDef calls functions that at most read variables, and has no other effect."""
    called = (function.name for value in node.attr.values() for function in (value.func, *value.list.func))
    names = [name for name in called if name in library]
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
    """Remove unused nodes of a function."""
    nodes = {node.name: node for node in function.node_def}
    roots = [*map(producer, function.ret.values()), *function.control_ret.values()]
    live = needed(nodes, roots, given={argument.name for argument in function.signature.input_arg})
    kept = [node for node in function.node_def if node.name in live]
    del function.node_def[:]
    function.node_def.extend(kept)
