"""What a traced step does with the rows of its batch: whether they influence each other, and how its loss adds them up.

Nothing of the model runs. Microbatches and replicas give the same numbers only if every row is computed by itself; the
loss of parts gives that of the whole only if it is a mean or a sum of what rows give.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixed, Origin, Total, Uniform
from partitioner.capture.batch_axis.walk import Walk
from partitioner.capture.functions.reader import CONDITIONALS
from partitioner.capture.functions.reading import Reading
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.step import CapturedStep, LossReduction

_SIZES = ("Shape", "ShapeN", "Size", "Rank")
ShapesFor = Callable[[int], Mapping[str, tuple[int, ...]] | str]
"""The shapes of all tensors for another number of rows, or why there are none."""


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


def flows_of_step(step: CapturedStep, settled: Reading, static_shape: Callable[[str], Any]) -> dict[str, Flow]:
    """What is known of the rows in each tensor that the outputs or the loss of a step depend on.

    Layers of Keras compute each row by itself, except for statistics that they keep. The loss is looked at as if the
    layers before it did, too: what they make, row by row, has its rows apart there.

    Args:
        step: A step whose inputs have the batch on their first axis.
        settled: TensorFlow's shapes for the step's batch size.
        static_shape: Shape of a tensor as it was traced, the batch open, by name.
    """
    graph = step.graph
    apart = {layer.path for layer in graph.layers if layer.keeps_rows_apart}
    walk = Walk(graph.batch_size, {op.name for op in graph.ops if op.layer in apart})
    flows: dict[str, Flow] = dict.fromkeys(step.inputs, Apart(0))
    names = {tensor.name: name for name, tensor in settled.tensors.items()}
    of_targets = set(_targets(step))

    def read(name: str, reader: Op) -> Flow:
        flow = flows.get(name, Uniform())
        is_blurred = isinstance(flow, Mixed) or (isinstance(flow, Apart) and flow != Apart(0))
        if is_blurred and not reader.layer and graph.op[graph.tensor[name].producer].layer:
            shape, sizes = static_shape(name), graph.tensor[name].spec.shape
            if shape.rank and shape[0] is None and sizes[0] == graph.batch_size:
                return Apart(0)
        return flow

    for op in _needed(step):
        if not op.outputs or op.name in step.captures or op.outputs[0] in flows:
            continue
        made = settled.tensors[op.outputs[0]].op
        # A handle of a variable is no tensor of the op graph.
        inputs = [read(name, op) if (name := names[t.name]) in graph.tensor else Uniform() for t in made.inputs]
        flows.update(zip(op.outputs, walk.flows(made, inputs, settled, op.name), strict=True))
        if not op.layer and _is_of(op, of_targets, flows):
            of_targets.update(op.outputs)
            if op.type == "All":
                # Which of the kinds of targets that it takes a data set has, such as -1 and 1 of a hinge loss.
                flows.update(dict.fromkeys(op.outputs, Uniform()))
    return flows


def _targets(step: CapturedStep) -> tuple[str, ...]:
    num_x, num_y = (sum(spec is not None for spec in tf.nest.flatten(specs)) for specs in step.specs[:2])
    return step.inputs[num_x : num_x + num_y]


def _is_of(op: Op, tensors: Container[str], flows: Mapping[str, Flow]) -> bool:
    """Whether an op depends on these tensors, and on nothing else but constants."""
    return any(name in tensors for name in op.inputs) and all(
        name in tensors or isinstance(flows.get(name), Uniform) for name in op.inputs
    )


def _needed(step: CapturedStep) -> list[Op]:
    """The forward ops that outputs and loss depend on, in graph order."""
    graph = step.graph
    needed = {graph.tensor[name].producer for name in [*_outputs(step), *tf.nest.flatten(step.outputs.get("loss")) ] if name}
    for op in reversed(graph.ops):
        if op.name in needed:
            needed.update(graph.tensor[name].producer for name in op.inputs)
    return [op for op in graph.ops if op.name in needed and op.phase is Phase.FORWARD]


def _outputs(step: CapturedStep) -> list[str]:
    return [name for name in tf.nest.flatten(step.outputs["y_pred"]) if name is not None]


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


def row_mixing(step: CapturedStep, flows: Mapping[str, Flow], shapes_for: ShapesFor) -> RowMixing:
    """Whether the outputs for a row depend on other rows, other than by statistics that a layer of Keras keeps."""
    graph, outputs = step.graph, _outputs(step)
    place = {op.name: index for index, op in enumerate(graph.ops)}
    origins = {name: origin for name in outputs if (origin := _origin(graph, name, flows[name])) is not None}
    origins |= {op.name: Origin(op.name, op.type) for op in _decided_by_rows(graph)}
    if not origins:
        return RowMixing()
    first = min(origins.values(), key=lambda origin: place[origin.op])
    reasons = [_uncuttable(graph, name, flows[name]) for name in outputs]
    reason = next(filter(None, reasons), "") or _odd_parts(graph, [name for name in outputs if name in origins], shapes_for)
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
        return f"rows of a part may be too few for {flow.origin.type} in {title!r}: {flow.grouped}" if flow.grouped else ""
    is_joined = isinstance(flow, Apart) and (flow.axis, flow.major) == (0, 1)
    return "" if is_joined else _no_part(graph, name)


def _no_part(graph: OpGraph, name: str) -> str:
    title = graph.op[graph.tensor[name].producer].title
    return f"the output of {title!r} for a part of the batch is no part of what it is for the whole"


def _odd_parts(graph: OpGraph, outputs: Sequence[str], shapes_for: ShapesFor) -> str:
    """Why mixed outputs of parts cannot be put together: another axis depends on the number of rows, or the first one
    in another way."""
    if not outputs:
        return ""
    shapes = shapes_for(graph.batch_size + 1)
    if isinstance(shapes, str):
        return shapes
    for name in outputs:
        if shapes[name] != (graph.batch_size + 1, *graph.tensor[name].spec.shape[1:]):
            return _no_part(graph, name)
    return ""


def loss_reduction(step: CapturedStep, flows: Mapping[str, Flow], loss_name: str) -> tuple[LossReduction, str]:
    """How the loss of a batch follows from the losses of its parts; for OTHER, also a sentence that says why.

    MEAN if it is the sum of n_m / n times the loss of part m with n_m of the n rows, SUM if it is their plain sum.

    Args:
        step: A step with a loss.
        flows: What is known of its tensors.
        loss_name: Name of the loss in the sentence.
    """
    flow = flows[step.outputs["loss"]]
    if isinstance(flow, Apart):
        flow = Total(flow.power, Origin(*_maker(step.graph, step.outputs["loss"])))  # its entries are summed
    match flow:
        case Uniform(power=0) | Total(power=-1):
            return LossReduction.MEAN, ""
        case Total(power=0):
            return LossReduction.SUM, ""
    if masks := _masks(step, flows):
        return LossReduction.OTHER, f"the loss is masked by {masks[0]}"
    origin = getattr(flow, "origin", None) or Origin(*_maker(step.graph, step.outputs["loss"]))
    where = f"{origin.type} in {title!r}" if (title := step.graph.op[origin.op].layer) else f"{origin.type} ({origin.op})"
    return LossReduction.OTHER, f"loss {loss_name!r} is not an average or a sum over rows, because of {where}"


def _maker(graph: OpGraph, name: str) -> tuple[str, str]:
    op = graph.op[graph.tensor[name].producer]
    return op.name, op.type


def _masks(step: CapturedStep, flows: Mapping[str, Flow]) -> list[str]:
    """The layers that make conditions for rows which the loss reads."""
    graph = step.graph
    found: dict[str, None] = {}
    stack, seen = [step.outputs["loss"]], set()
    while stack:
        name = stack.pop()
        op = graph.op[graph.tensor[name].producer]
        if op.layer or op.type == "Placeholder":
            if graph.tensor[name].spec.dtype == "bool" and isinstance(flows.get(name), Apart):
                found[repr(op.layer or name)] = None
        elif op.name not in seen:
            seen.add(op.name)
            stack.extend(op.inputs)
    return list(found)
