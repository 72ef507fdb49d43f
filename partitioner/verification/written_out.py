"""The unplaced model with its powers written out as in placed steps, so that both round alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from partitioner.capture.lower.powers import write_out_powers
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.ir.graph_def import tensor_name


def with_powers_written_out(
    function: Callable[..., Any], specs: Sequence[Any], *, jit_compile: bool
) -> Callable[..., Any]:
    """`function` of arguments of `specs` as TensorFlow runs it in a graph; it is traced at its first call.

    Its graph is changed and imported into a new function, with the same variables. If asked to, XLA compiles it for the
    host, where its variables must be: without a device TensorFlow would call it on a GPU.
    """

    @cache
    def made() -> Any:
        # Loops whose gradient is to be compiled are traced otherwise.
        traced = tf.function(function, autograph=False, jit_compile=jit_compile).get_concrete_function(*specs)
        return _written_out(traced.graph, specs, jit_compile)

    def on_host(*arguments: Any) -> Any:
        with tf.device(HOST):
            return made()(*arguments)

    return on_host


def _written_out(graph: Any, specs: Sequence[Any], jit_compile: bool) -> Any:
    graph_def = graph.as_graph_def()
    write_out_powers(graph_def)
    outputs = [tensor.name for tensor in tf.nest.flatten(graph.structured_outputs) if tensor is not None]
    outside = {inside.name: external for external, inside in graph.captures}
    given = [tensor.name for tensor in graph.inputs if tensor.name not in outside]
    arguments = {*given, *outside}
    nodes = [node for node in graph_def.node if f"{node.name}:0" not in arguments]  # XLA compiles no placeholders
    read = {tensor_name(reference) for node in nodes for reference in node.input}
    del graph_def.node[:]
    graph_def.node.extend(nodes)

    def run(*values: Any) -> Any:
        here: Any = tf.compat.v1.get_default_graph()
        by_name = dict(zip(given, (value for value in tf.nest.flatten(values) if value is not None), strict=True))
        by_name |= {name: here.capture(external) for name, external in outside.items()}
        replaced = {name: value for name, value in by_name.items() if name in read}
        wanted = [name for name in outputs if name not in arguments]
        made = tf.graph_util.import_graph_def(graph_def, input_map=replaced, return_elements=wanted, name="")
        by_name |= dict(zip(wanted, made, strict=True))
        return tf.nest.map_structure(lambda t: None if t is None else by_name[t.name], graph.structured_outputs)

    return tf.function(run, autograph=False, jit_compile=jit_compile).get_concrete_function(*specs)
