"""Bytes that items keep between the phases of a step."""

from __future__ import annotations

from cost_models.memory import allocated_bytes
from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.buffers import buffers_of
from partitioner.planner.model.coarsening import Coarsening


def item_bytes(costed: CostedGraph, coarsening: Coarsening, *, at_least: bool = False) -> list[int]:
    """Bytes each item keeps between phases: variables, gradients and what it saves for the backward pass.

    With `at_least`, gradients and saved activations are taken as never held at the same time, and the larger
    kind counts.
    """
    variables, saved, gradients = _bytes_by_kind(costed, coarsening)
    if at_least:
        saved, gradients = max(saved, gradients, key=sum), [0] * len(coarsening.items)
    return [sum(kinds) for kinds in zip(variables, saved, gradients, strict=True)]


def lasting_item_bytes(costed: CostedGraph, coarsening: Coarsening) -> list[int]:
    """Bytes each item keeps however many microbatches the batch is cut into: variables and gradients."""
    variables, _, gradients = _bytes_by_kind(costed, coarsening)
    return [sum(kinds) for kinds in zip(variables, gradients, strict=True)]


def variable_item_bytes(costed: CostedGraph, coarsening: Coarsening) -> list[int]:
    """Bytes of each item's variables, unrounded: what it keeps at the least, however it is run."""
    sizes = [0] * len(coarsening.items)
    home_op = buffers_of(costed).home_op
    for variable in costed.graph.variables:
        if variable.name in home_op:
            sizes[coarsening.item_of[home_op[variable.name]]] += variable.size_bytes
    return sizes


def _bytes_by_kind(costed: CostedGraph, coarsening: Coarsening) -> tuple[list[int], list[int], list[int]]:
    """Bytes of variables, of what is saved for the backward pass, and of gradients, by item."""
    graph, buffers = costed.graph, buffers_of(costed)
    variables, saved, gradients = ([0] * len(coarsening.items) for _ in range(3))
    for variable in graph.variables:
        if variable.name in buffers.home_op:
            item = coarsening.item_of[buffers.home_op[variable.name]]
            variables[item] += allocated_bytes(variable.size_bytes, "GPU")
    inner = costed.fusion.inner if costed.fusion is not None else frozenset[str]()
    for name, maker in buffers.kept.items():
        if name in inner:
            continue
        kind = gradients if name in buffers.gradients else saved
        kind[coarsening.item_of[maker]] += allocated_bytes(graph.tensor[name].size_bytes, "GPU")
    return variables, saved, gradients
