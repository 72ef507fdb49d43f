"""Which ops of a step XLA cannot compile, and whether it compiles the step as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from partitioner.ir.devices import DeviceName
from partitioner.ir.step import CapturedStep
from partitioner.xla_kernels import refusal


def refused_ops(step: CapturedStep, devices: Iterable[str]) -> dict[str, str]:
    """Of the ops that XLA cannot compile for one of the kinds of the devices, why.

    Args:
        step: The step.
        devices: Canonical names of the devices whose programs are compiled.
    """
    kinds = sorted({DeviceName.parse(name).type for name in devices})
    functions = {function.signature.name: function for function in step.graph_def.library.function}
    known = step.graph.op
    return {
        node.name: why
        for kind in kinds
        for node in step.graph_def.node
        if node.name in known and node.op not in ("Placeholder", "Const") and (why := refusal(node, functions, kind))
    }
