"""Add the gradients of a microbatch to running totals, as stages do after each backward pass, to measure it."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from partitioner.ir.op_graph import Op, OpGraph, Phase, Tensor
from partitioner.ir.step import CapturedStep


def gradient_sums(step: CapturedStep) -> OpGraph:
    """A sum for each dense gradient of the step; without any for inference."""
    dense = [name for name in step.outputs.get("gradients") or () if isinstance(name, str)]
    ops: list[Op] = []
    tensors: list[Tensor] = []
    for index, name in enumerate(dense):
        op_names = [f"{what}_{index}" for what in ("running_total", "gradient", "gradient_sum")]
        total, gradient, added = (f"{op_name}:0" for op_name in op_names)
        ops += [Op(name=op_name, type="Placeholder", outputs=(f"{op_name}:0",)) for op_name in op_names[:2]]
        ops.append(Op(name=op_names[2], type="AddV2", phase=Phase.BACKWARD, inputs=(total, gradient), outputs=(added,)))
        spec = step.graph.tensor[name].spec
        tensors += [Tensor(name=f"{op_name}:0", producer=op_name, spec=spec) for op_name in op_names]
    return OpGraph(
        name=step.graph.name,
        batch_size=step.graph.batch_size,
        training=True,
        ops=tuple(ops),
        tensors=tuple(tensors),
        variables=(),
        layers=(),
        outputs=(),
    )


def adding(graph: OpGraph, device: str) -> Callable[[], None]:
    """Runs such a graph on a device, to its end.

    Each gradient is made just before it is added, as in a backward pass: it is in the processor's caches, and its
    buffer becomes the sum's.
    """
    added = [op for op in graph.ops if op.inputs]
    specs = [graph.tensor[op.outputs[0]].spec for op in added]
    with tf.device(device):
        totals, zero = [tf.zeros(spec.shape, spec.dtype) for spec in specs], tf.zeros(())

    @tf.function(autograph=False)
    def add(totals: list[tf.Tensor], zero: tf.Tensor) -> list[tf.Tensor]:
        sums: list[tf.Tensor] = []
        for op, spec, total in zip(added, specs, totals, strict=True):
            with tf.device(device), tf.control_dependencies(sums[-1:]):
                gradient = tf.fill(spec.shape, tf.cast(zero, spec.dtype))
                sums.append(tf.raw_ops.AddV2(x=total, y=gradient, name=op.name))
        return sums

    def run() -> None:
        add(totals, zero)
        tf.test.experimental.sync_devices()

    return run
