"""What a traced step does with the rows of its batch: whether they influence each other, and how its loss adds them up.

Nothing of the model runs. Microbatches and replicas give the same numbers only if every row is computed by itself; the
loss of parts gives that of the whole only if it is a mean or a sum of what rows give.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixed, Uniform
from partitioner.capture.batch_axis.loss_reduction import loss_reduction
from partitioner.capture.batch_axis.row_mixing import row_mixing
from partitioner.capture.batch_axis.walk import Walk
from partitioner.capture.functions.reading import Reading
from partitioner.ir.graph_def import tensor_name
from partitioner.ir.op_graph import Op, Phase
from partitioner.ir.step import CapturedStep, LossReduction


def with_rows(
    step: CapturedStep,
    settled: Reading,
    *,
    static_shape: Callable[[str], Any],
    settled_for: Callable[[int], Reading],
    loss_name: str,
) -> CapturedStep:
    """The step with whether rows of its batch mix, and with the reduction of its loss.

    Args:
        step: A step of any kind.
        settled: TensorFlow's shapes for the step's batch size.
        static_shape: Shape of a tensor as it was traced, the batch open, by name.
        settled_for: Gives TensorFlow's shapes for another number of rows.
        loss_name: Name of the loss in sentences; empty if there is none.
    """
    if not step.fixed_batch:
        flows = flows_of_step(step, settled, static_shape)
        mixing = row_mixing(step, flows, settled_for)
        graph = replace(step.graph, mixing_layer=mixing.layer, mixing_op=mixing.op_type)
        step = replace(step, graph=graph, fixed_batch=mixing.uncuttable)
        if loss_name and not step.fixed_batch:
            reduction, note = loss_reduction(step, flows, loss_name)
            return replace(step, loss_reduction=reduction, loss_reduction_note=note)
    if loss_name:
        return replace(step, loss_reduction=LossReduction.OTHER, loss_reduction_note=step.fixed_batch)
    return step


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
    nodes = {node.name: node for node in step.graph_def.node}
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
        names = [tensor_name(name) for name in nodes[op.name].input if not name.startswith("^")]
        # A handle of a variable is no tensor of the op graph.
        inputs = [read(name, op) if name in graph.tensor else Uniform() for name in names]
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
    needed = {
        graph.tensor[name].producer
        for name in tf.nest.flatten([step.outputs["y_pred"], step.outputs.get("loss")])
        if name
    }
    for op in reversed(graph.ops):
        if op.name in needed:
            needed.update(graph.tensor[name].producer for name in op.inputs)
    return [op for op in graph.ops if op.name in needed and op.phase is Phase.FORWARD]
