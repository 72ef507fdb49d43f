"""A piece of a captured step as a function of its own, so that probes can run its ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from partitioner.deferred_variables import DeferredVariable
from partitioner.ir.graph_def import producer
from partitioner.ir.step import CapturedStep


def piece_function(step: CapturedStep, ops: Collection[str], given: Mapping[str, Any], results: Sequence[str]) -> Any:
    """A ConcreteFunction that computes `results` by some of a step's ops, without their side effects.

    Args:
        step: The step.
        ops: Names of the ops.
        given: TensorSpec of each input tensor, by name, in the order of the function's arguments.
        results: Names of the tensors that it returns, in a list.
    """
    graph_def = type(step.graph_def)()
    graph_def.versions.CopyFrom(step.graph_def.versions)
    graph_def.library.CopyFrom(step.graph_def.library)
    for node in step.graph_def.node:
        if node.name in ops and node.name not in step.captures:
            new = graph_def.node.add()
            new.CopyFrom(node)
            del new.input[:]
            new.input.extend(reference for reference in node.input if not reference.startswith("^"))
    used = {producer(reference) for node in graph_def.node for reference in node.input}

    for name in used & step.captures.keys():
        owner = getattr(step.captures[name], "_parent_trackable", lambda: None)()
        if isinstance(owner, DeferredVariable):
            owner.read_value()

    def run(*arguments: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        replaced = dict(zip(given, arguments, strict=True))
        replaced |= {f"{n}:0": graph.capture(external) for n, external in step.captures.items() if n in used}
        return tf.graph_util.import_graph_def(graph_def, replaced, list(results), name="")

    return tf.function(run, autograph=False, input_signature=list(given.values())).get_concrete_function()
