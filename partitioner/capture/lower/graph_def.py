"""Edits of a traced GraphDef that change what runs where, never what is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partitioner.ir.graph_def import producer, resolved

READ = "ReadVariableOp"
_TRIPS_AT_ONCE = 2


def remove_colocations(graph_def: Any) -> None:
    """Remove every request to lie where another op does: it would overrule the devices of a placement."""
    for node in graph_def.node:
        if "_class" in node.attr:
            del node.attr["_class"]


def call_functions(graph_def: Any) -> None:
    """Turn nodes of functions whose op is the name of a function into calls, which have a kernel of their own.

    Old functions of TensorFlow (those of its CTC loss) call each other so, and no graph is imported with such ops.
    """
    signatures = {function.signature.name: function.signature for function in graph_def.library.function}
    for function in graph_def.library.function:
        renamed: dict[str, str] = {}
        for node in function.node_def:
            if (signature := signatures.get(node.op)) is None:
                continue
            outputs = [argument.name for argument in signature.output_arg]
            renamed |= {f"{node.name}:{name}:0": f"{node.name}:output:{index}" for index, name in enumerate(outputs)}
            name, node.op = node.op, "StatefulPartitionedCall" if signature.is_stateful else "PartitionedCall"
            node.attr.clear()
            node.attr["f"].func.name = name
            node.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
            node.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)
        for node in function.node_def if renamed else ():
            node.input[:] = [renamed.get(reference, reference) for reference in node.input]
        for key, reference in list(function.ret.items()):
            function.ret[key] = renamed.get(reference, reference)


def bypass_identity_n(graph_def: Any, names: Iterable[str]) -> None:
    """Let consumers of the IdentityN nodes among `names` read their inputs directly.

    Keras passes all gradients through one IdentityN, a barrier that makes every device wait for the last gradient.
    """
    candidates = set(names)
    through: dict[str, str] = {}
    for node in graph_def.node:
        if node.op == "IdentityN" and node.name in candidates:
            data = [reference for reference in node.input if not reference.startswith("^")]
            through.update({_reference(node.name, index): reference for index, reference in enumerate(data)})
    if through:
        _rewire(graph_def, through)


def limit_trips_at_once(graph_def: Any) -> None:
    """Let no loop run more than two trips at a time, in function bodies too.

    Keras lets its layers run 32 at a time. TensorFlow's executor runs the op that became ready first last, so the
    kernel gradients of all 32 trips of an LSTM are in memory before the first is added. With two, a core that waits for
    a trip can still work for the next: an LSTM took no longer on two cores.
    """
    for node in (*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)):
        if "parallel_iterations" in node.attr:
            limit = node.attr["parallel_iterations"]
            limit.i = min(limit.i, _TRIPS_AT_ONCE)


def share_reads(graph_def: Any, order: Mapping[str, float], variable_of: Mapping[str, str]) -> dict[str, str]:
    """Replace all reads of a variable before its first write by a single read.

    All of them read the same value. Keras reads the learning rate and the step count once per parameter, and TensorFlow
    would send each read to each device on its own.

    Args:
        graph_def: Edited in place.
        order: Position of each node in the order of tracing, which is the order effects happen in.
        variable_of: Variable name by the name of the placeholder that stands for its handle.

    Returns:
        The read that stays, by the removed read.
    """
    first_write: dict[str, float] = {}
    reads: dict[str, list[str]] = {}
    for node in sorted(graph_def.node, key=lambda n: order[n.name]):
        touched = [variable_of[p] for r in node.input if (p := producer(r)) in variable_of and not r.startswith("^")]
        for variable in touched:
            if node.op == READ and variable not in first_write:
                reads.setdefault(variable, []).append(node.name)
            elif node.op != READ:
                first_write.setdefault(variable, order[node.name])
    through = {other: same[0] for same in reads.values() for other in same[1:]}
    if through:
        _rewire(graph_def, through)
    return through


def _rewire(graph_def: Any, through: Mapping[str, str]) -> None:
    gone = {producer(reference) for reference in through}
    for node in graph_def.node:
        if not any(producer(reference) in gone for reference in node.input):
            continue
        inputs: list[str] = []
        for reference in node.input:
            if not reference.startswith("^"):
                inputs.append(resolved(reference, through))
                continue
            target = producer(reference)
            if target in gone:
                target = producer(resolved(target, through))
            if target not in gone and f"^{target}" not in inputs:
                inputs.append(f"^{target}")
        del node.input[:]
        node.input.extend(inputs)


def _reference(name: str, index: int) -> str:
    return name if index == 0 else f"{name}:{index}"
