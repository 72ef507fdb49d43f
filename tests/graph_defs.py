"""GraphDefs made by hand, and who reads what in them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def graph_def(*rows: tuple[str, str, list[str]]) -> Any:
    """A graph of nodes by name, op and inputs."""
    graph = tf.compat.v1.GraphDef()
    for name, op, inputs in rows:
        graph.node.add(name=name, op=op, input=inputs)
    return graph


def inputs_of(graph: Any) -> dict[str, list[str]]:
    """The inputs of every node."""
    return {node.name: list(node.input) for node in graph.node}
