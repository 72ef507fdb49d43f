"""The unplaced model with its powers written out as in placed steps, so that both round alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from partitioner.capture.lower.powers import write_out_powers


def with_powers_written_out(
    function: Callable[..., Any], specs: Sequence[Any], *, jit_compile: bool
) -> Callable[..., Any]:
    """`function` of arguments of `specs` as TensorFlow runs it in a graph; it is traced at its first call.

    Its graph is changed and imported into a new function, with the same variables; XLA compiles it if asked to.
    """

    @cache
    def made() -> Any:
        return _written_out(
            tf.function(function, autograph=False).get_concrete_function(*specs).graph, specs, jit_compile
        )

    return lambda *arguments: made()(*arguments)


def _written_out(graph: Any, specs: Sequence[Any], jit_compile: bool) -> Any:
    graph_def = graph.as_graph_def()
    write_out_powers(graph_def)
    outputs = [tensor.name for tensor in tf.nest.flatten(graph.structured_outputs) if tensor is not None]
    outside = {inside.name: external for external, inside in graph.captures}
    given = [tensor.name for tensor in graph.inputs if tensor.name not in outside]

    def run(*arguments: Any) -> Any:
        here: Any = tf.compat.v1.get_default_graph()
        values = [value for value in tf.nest.flatten(arguments) if value is not None]
        replaced = dict(zip(given, values, strict=True))
        replaced |= {name: here.capture(external) for name, external in outside.items()}
        made = tf.graph_util.import_graph_def(graph_def, input_map=replaced, return_elements=outputs, name="")
        by_name = dict(zip(outputs, made, strict=True))
        return tf.nest.map_structure(lambda t: None if t is None else by_name[t.name], graph.structured_outputs)

    return tf.function(run, autograph=False, jit_compile=jit_compile).get_concrete_function(*specs)
