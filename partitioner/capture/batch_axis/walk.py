"""Walk the ops of a graph in order, and find for each tensor where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

# Rules register themselves.
from partitioner.capture.batch_axis import (  # noqa: F401
    contractions,
    convolutions,
    creation,
    elementwise,
    indexing,
    lists,
    pieces,
    reductions,
    reshapes,
    slices,
)
from partitioner.capture.batch_axis.calls import flows_of_call
from partitioner.capture.batch_axis.flow import Apart, Flow, Items, Mixed, Mixes, Origin, Row, Uniform
from partitioner.capture.batch_axis.numbers import known_numbers
from partitioner.capture.batch_axis.site import RULES, Site
from partitioner.capture.functions.reader import Inside
from partitioner.capture.functions.reading import Reading


class Walk:
    """Finds the flows of ops in graphs with shapes for a batch of `rows` rows.

    Attributes:
        rows: The number of rows.
        trusted: Names of the ops of the step that are known to compute each row by itself, but for statistics: where
            no rule shows it, the result has its rows where the input has them.
    """

    def __init__(self, rows: int, trusted: Container[str]) -> None:
        self.rows, self.trusted = rows, trusted

    def flows(self, op: Any, inputs: Sequence[Flow], reading: Reading, name: str) -> list[Flow]:
        """The flows of an op's outputs; `name` is that of the op of the step that it is or lies in."""
        origin = Origin(name, op.type)
        site = Site(op, tuple(inputs), self.rows, origin)
        try:
            made = self._made(site, reading)
        except Mixes as found:
            mixed = Mixed(found.origin or origin, found.grouped)
            made = [mixed] * len(op.outputs)
        return [self._checked(site, tensor, flow) for tensor, flow in zip(op.outputs, made, strict=True)]

    def _made(self, site: Site, reading: Reading) -> Sequence[Flow]:
        op, flows = site.op, site.flows
        if op.name in reading.insides:
            return flows_of_call(site, reading.insides[op.name], self._inside(site.origin.op, reading))
        for flow in flows:
            if isinstance(flow, Mixed):
                return [flow] * len(op.outputs)
        if Row() in flows and op.type not in ("TensorListSetItem", "TensorListPushBack"):
            if not all(flow == Row() or (isinstance(flow, Uniform) and flow.power == 0) for flow in flows):
                raise Mixes
            return [Row()] * len(op.outputs)
        if (known := known_numbers(site)) is not None:
            return known
        if (rule := RULES.get(op.type)) is not None:
            made = rule(site)
            return made if isinstance(made, list) else [made] * len(op.outputs)  # type: ignore[return-value]
        return [_of_unknown(site)] * len(op.outputs)

    def _inside(self, name: str, reading: Reading) -> Callable[[Inside, Sequence[Flow]], Mapping[str, Flow]]:
        def run(inside: Inside, given: Sequence[Flow]) -> Mapping[str, Flow]:
            flows: MutableMapping[str, Flow] = dict(
                zip((tensor.name for tensor in inside.arguments), given, strict=True)
            )
            for op in inside.ops:
                # What is not there is a constant that the reading of the function put in.
                inputs = [flows.get(tensor.name, Uniform()) for tensor in op.inputs]
                made = self.flows(op, inputs, inside.reading, name)
                flows.update(zip((tensor.name for tensor in op.outputs), made, strict=True))
            return flows

        return run

    def _checked(self, site: Site, tensor: Any, flow: Flow) -> Flow:
        """The flow, if it agrees with TensorFlow's shape; for trusted ops a likely one in place of `Mixed`."""
        if isinstance(flow, Apart) and tensor.dtype != tf.variant:
            shape = tensor.shape
            size = shape[flow.axis] if shape.rank is not None and flow.axis < shape.rank else None
            if shape.rank is not None and (flow.axis >= shape.rank or size not in (None, flow.rows.at(self.rows))):
                flow = Mixed(site.origin)
        if isinstance(flow, Mixed) and flow.origin.op in self.trusted:
            return self._likely(site, tensor)
        return flow

    def _likely(self, site: Site, tensor: Any) -> Flow:
        """The rows where an input has them, or on the first axis with a size like theirs; else there are none."""
        if tensor.dtype == tf.variant:
            return Items()
        sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
        for flow in site.apart:
            if flow.axis < len(sizes) and sizes[flow.axis] == flow.rows.at(self.rows):
                return Apart(flow.axis, flow.major, flow.minor)
        has_rows = any(not isinstance(flow, Uniform) for flow in site.flows)
        axes = [axis for axis, size in enumerate(sizes) if size in (self.rows, None)]
        return Apart(axes[0]) if axes and has_rows else Uniform()


def _of_unknown(site: Site) -> Flow:
    """Of an op without a rule it is known only that it has no rows where its inputs have none."""
    if not all(isinstance(flow, Uniform) for flow in site.flows):
        raise Mixes
    bent = [flow for flow in site.flows if isinstance(flow, Uniform) and flow.power != 0]
    return Uniform(None, None, bent[0].origin) if bent else Uniform()
