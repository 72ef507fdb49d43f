"""Whether rows of a batch influence each other, by what is known of the outputs of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixed, Origin
from partitioner.capture.functions.reader import CONDITIONALS
from partitioner.capture.functions.reading import Reading
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.step import CapturedStep

_SIZES = ("Shape", "ShapeN", "Size", "Rank")
SettledFor = Callable[[int], Reading]
"""Gives TensorFlow's shapes for another number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMixing:
    """Whether rows of a batch influence each other in a step.

    Attributes:
        layer: Title of the first layer whose results for a row depend on other rows; empty if there is none.
        op_type: Type of the op that brings the rows together in it.
        uncuttable: Why the results of parts cannot be put together; empty if they can.
    """

    layer: str = ""
    op_type: str = ""
    uncuttable: str = ""


def _decided_by_rows(graph: OpGraph) -> list[Op]:
    """The conditionals outside of Keras' layers that take one branch for all rows, by values in the rows.

    They count even if no output depends on them: their branches may have effects.
    """
    apart = {layer.path for layer in graph.layers if layer.keeps_rows_apart}
    by_values = graph.depending_on((graph.tensor[name].producer for name in graph.inputs), but=_SIZES)
    return [
        op
        for op in graph.ops
        if op.type in CONDITIONALS and op.phase is Phase.FORWARD and op.layer not in apart
        if graph.tensor[op.inputs[0]].producer in by_values
    ]


def row_mixing(step: CapturedStep, flows: Mapping[str, Flow], settled_for: SettledFor) -> RowMixing:
    """Whether the outputs for a row depend on other rows, other than by statistics that a layer of Keras keeps."""
    graph = step.graph
    outputs = [name for name in tf.nest.flatten(step.outputs["y_pred"]) if name is not None]
    place = {op.name: index for index, op in enumerate(graph.ops)}
    origins = {name: origin for name in outputs if (origin := _origin(graph, name, flows[name])) is not None}
    origins |= {op.name: Origin(op.name, op.type) for op in _decided_by_rows(graph)}
    if not origins:
        return RowMixing()
    first = min(origins.values(), key=lambda origin: place[origin.op])
    reasons = [_uncuttable(graph, name, flows[name]) for name in outputs]
    reason = next(filter(None, reasons), "") or _odd_parts(
        graph, [name for name in outputs if name in origins], settled_for
    )
    return RowMixing(layer=graph.op[first.op].title, op_type=first.type, uncuttable=reason)


def _origin(graph: OpGraph, name: str, flow: Flow) -> Origin | None:
    """The op that brings rows together in an output, or makes it depend on their number; None if none does."""
    if isinstance(flow, Apart) and (flow.axis, flow.major, flow.power) == (0, 1, 0):
        return None
    here = graph.op[graph.tensor[name].producer]
    return getattr(flow, "origin", None) or Origin(here.name, here.type)


def _uncuttable(graph: OpGraph, name: str, flow: Flow) -> str:
    """Why an output of parts cannot be put together, as far as its flow says so."""
    if isinstance(flow, Mixed):
        title = graph.op[flow.origin.op].title
        return (
            f"rows of a part may be too few for {flow.origin.type} in {title!r}: {flow.grouped}" if flow.grouped else ""
        )
    is_joined = isinstance(flow, Apart) and (flow.axis, flow.major) == (0, 1)
    return "" if is_joined else _no_part(graph, name)


def _no_part(graph: OpGraph, name: str) -> str:
    title = graph.op[graph.tensor[name].producer].title
    return f"the output of {title!r} for a part of the batch is no part of what it is for the whole"


def _odd_parts(graph: OpGraph, outputs: Sequence[str], settled_for: SettledFor) -> str:
    """Why mixed outputs of parts cannot be put together: another axis depends on the number of rows, or the first one
    in another way."""
    if not outputs:
        return ""
    rows = graph.batch_size + 1
    try:
        specs = settled_for(rows).specs
    except (ValueError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        return f"the model takes {graph.batch_size} rows, but not {rows}: {reason}"
    for name in outputs:
        if specs[name].shape != (rows, *graph.tensor[name].spec.shape[1:]):
            return _no_part(graph, name)
    return ""
