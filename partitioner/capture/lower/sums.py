"""Sums of gradients: in steps where many layers have a part, and which op each belongs to.

A sum of gradients belongs to no op by itself. Of the readers of its tensor the first has it: for a skip connection,
where it begins, as what is added last and what needs the sum next are there. Cut between its ends, a sum at the far one
would be sent there and come back; one before the first reader would have all parts sent.

What an encoder hands to a decoder has two readers in each of its blocks. Added up at once, a part from each of them
would cross every boundary of stages in between; added up in steps, as the gradients are made, only the sum so far does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from partitioner.ir.graph_def import producer

_MOST_LAYERS_AT_ONCE = 4
"""Layers next to each other, such as the branches of an Inception block, whose parts are added up at once."""
_PARTS_OF_STEP = 2
"""Parts that a step adds to the sum: keys and values of attention. Each step reads and writes the sum once more."""
_PARTS_AT_ONCE = 8
"""Parts that a call of TensorFlow's kernel adds to the sum."""


def sum_in_steps(
    graph_def: Any,
    differentiates: Mapping[str, str],
    layer_of: Mapping[str, str],
    order: dict[str, float],
    kept: Collection[str],
) -> dict[str, str]:
    """Add up gradients of many layers in steps: each adds the next parts to the sum so far, to the same bits.

    The last step keeps the name of the sum. Edits the graph in place, and adds the other steps to `order`.

    Args:
        graph_def: The traced graph.
        differentiates: The op that each op of a gradient differentiates.
        layer_of: Layers of the forward ops.
        order: Where in the step each op runs.
        kept: Sums that stay as they are.

    Returns:
        The sum of each node that was added.
    """
    added: dict[str, str] = {}
    for node in list(graph_def.node):
        if node.op != "AddN" or node.name not in differentiates or node.name in kept:
            continue
        parts = [reference for reference in node.input if not reference.startswith("^")]
        layers = {layer_of.get(differentiates.get(producer(part), "")) for part in parts} - {None}
        if len(layers) <= _MOST_LAYERS_AT_ONCE:
            continue
        control = [*node.input[len(parts) :]]
        made: list[str] = []
        *before, last = _steps(parts)
        for step in before:
            inputs = [made[part] if isinstance(part, int) else part for part in step]
            new = graph_def.node.add(name=f"{node.name}_step_{len(made)}", op="AddN", device=node.device)
            new.attr["T"].CopyFrom(node.attr["T"])
            _set_inputs(new, inputs)
            latest = max(order[producer(name)] for name in inputs)
            order[new.name] = (latest + min(latest + 1, order[node.name])) / 2
            made.append(new.name)
        _set_inputs(node, [made[part] if isinstance(part, int) else part for part in last], control)
        added.update((name, node.name) for name in made)
    return added


def _steps(parts: Sequence[str]) -> list[list[str | int]]:
    """What each step adds up: parts, and earlier steps by their number. The last makes the sum.

    TensorFlow's kernel adds the first two to nine parts from left to right, and then sums of eight parts each
    (aggregate_ops.cc of TensorFlow 2.21). So do the steps, to the same bits.
    """
    first = 2 + (len(parts) - 2) % _PARTS_AT_ONCE
    starts = range(first, len(parts), _PARTS_AT_ONCE)
    steps: list[list[str | int]] = []
    so_far: list[str | int] = []
    for group in (parts[:first], *(parts[start : start + _PARTS_AT_ONCE] for start in starts)):
        of_group: list[str | int] = []
        for at in range(0, len(group), _PARTS_OF_STEP):
            steps.append([*of_group, *group[at : at + _PARTS_OF_STEP]])
            of_group = [len(steps) - 1]
        if so_far:
            steps.append([*so_far, *of_group])
        so_far = [len(steps) - 1]
    return steps


def _set_inputs(node: Any, parts: Sequence[str], control: Sequence[str] = ()) -> None:
    del node.input[:]
    node.input.extend([*parts, *control])
    node.attr["N"].i = len(parts)


def partners_of_sums(
    nodes: Iterable[Any], differentiates: Mapping[str, str], order: Mapping[str, float]
) -> dict[str, str]:
    """For each sum of gradients, the first of the forward ops that its parts differentiate, where all are known.

    Args:
        nodes: Those of the traced graph.
        differentiates: The op that each op of a gradient differentiates.
        order: Where in the step each op runs; sums of sums come after these.
    """
    found: dict[str, str] = {}
    sums = [node for node in nodes if node.op == "AddN" and node.name in differentiates]
    for node in sorted(sums, key=lambda node: order[node.name]):
        parts = [producer(reference) for reference in node.input if not reference.startswith("^")]
        partners = [found.get(part) or differentiates.get(part, "") for part in parts]
        known = [partner for partner in partners if partner in order]
        if known and len(known) == len(parts):
            found[node.name] = min(known, key=order.__getitem__)
    return found
