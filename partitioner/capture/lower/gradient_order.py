"""Sum the gradients of a tensor in the order Keras' own training step sums them.

A tensor with three readers or more gets its gradient from an AddN. We use `tf.gradients` because it colocates gradient
ops with forward ops, but it lists the parts in another order than the tape of Keras. Float sums depend on the order, so
a model would train to slightly different numbers. So the tape's walk over the forward ops is replayed (ComputeGradient
in tensorflow/c/eager/tape.h: first in, first out) and the parts are sorted by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partitioner.ir.graph_def import producer


def sort_gradient_parts(graph_def: Any, colocations: Mapping[str, str], rank: Mapping[str, int]) -> None:
    """Sort the inputs of every AddN whose parts all belong to ranked forward ops. Edits in place.

    Args:
        graph_def: The traced graph.
        colocations: The forward op that each gradient op differentiates.
        rank: Position of each forward op in the tape's walk.
    """
    for node in graph_def.node:
        if node.op != "AddN" or node.name not in colocations:
            continue
        parts = [reference for reference in node.input if not reference.startswith("^")]
        ranks = [rank.get(colocations.get(producer(part), "")) for part in parts]
        ranked = [rank for rank in ranks if rank is not None]
        if len(parts) < 3 or len(ranked) < len(parts):
            continue
        control = [reference for reference in node.input if reference.startswith("^")]
        order = sorted(range(len(parts)), key=ranked.__getitem__)
        del node.input[:]
        node.input.extend([*(parts[index] for index in order), *control])


def tape_rank(ops: Sequence[Any], target: Any, sources: Iterable[Any]) -> dict[str, int]:
    """Position of each forward op in the order a GradientTape differentiates them.

    Args:
        ops: The forward ops (TensorFlow's), in order of creation.
        target: The tensor that is differentiated.
        sources: The tensors it is differentiated by: handles of the trained variables, as the graph sees them.
    """
    watched = {source.name for source in sources}
    made_by: dict[str, Any] = {}  # the op on the tape that makes each tensor
    for op in ops:
        if op.type == "StopGradient":  # tf.stop_gradient stops the recording
            continue
        if any(_is_trainable(t) and (t.name in watched or t.name in made_by) for t in op.inputs):
            made_by.update((output.name, op) for output in op.outputs)
    uses, missing = _pending(target, made_by)
    rank: dict[str, int] = {}
    queue = deque([made_by[target.name]] if target.name in made_by else [])
    while queue:
        op = queue.popleft()
        rank[op.name] = len(rank)
        for tensor in op.inputs:
            uses[tensor.name] -= 1
            if uses[tensor.name] == 0 and tensor.name in made_by:
                maker = made_by[tensor.name]
                missing[maker.name] -= 1
                if missing[maker.name] == 0:
                    queue.append(maker)
    return rank


def _pending(target: Any, made_by: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """How often the ops that lead to the target use each tensor, and how many outputs of each op are used."""
    uses: dict[str, int] = {}
    seen: set[str] = set()
    stack = [target.name]
    while stack:
        op = made_by.get(stack.pop())
        if op is None or op.name in seen:
            continue
        seen.add(op.name)
        for tensor in op.inputs:
            uses[tensor.name] = uses.get(tensor.name, 0) + 1
            stack.append(tensor.name)
    missing: dict[str, int] = {}
    for name in uses:
        if name in made_by:
            missing[made_by[name].name] = missing.get(made_by[name].name, 0) + 1
    return uses, missing


def _is_trainable(tensor: Any) -> bool:
    dtype = tensor.dtype.base_dtype
    return dtype.is_floating or dtype.is_complex or dtype.name in ("resource", "variant")
