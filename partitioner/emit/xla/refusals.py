"""Which ops of a step XLA cannot compile, and whether it compiles the step as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution
from partitioner.ir.step import CapturedStep
from partitioner.xla_kernels import refusal, unbounded_lists


def kept_plain(step: CapturedStep, devices: Collection[str]) -> frozenset[str]:
    """Ops that are not compiled though XLA could: those that draw random numbers, if it cannot compile the whole step.

    XLA draws other numbers than TensorFlow's kernels. So a step draws as the unplaced model does, which is compiled
    whole or not at all.
    """
    if not devices or not refused_ops(step, devices):
        return frozenset()
    return frozenset(op.name for op in step.graph.ops if op.draws)


def compiled_ops(step: CapturedStep, execution: Execution) -> frozenset[str]:
    """Ops of a step that XLA compiles under an execution, as far as can be said before it is asked."""
    if not execution.compiled:
        return frozenset()
    kept = kept_plain(step, execution.compiled).union(refused_ops(step, execution.compiled))
    return frozenset(name for name, device in execution.placement.items() if device in execution.compiled) - kept


def refused_ops(step: CapturedStep, devices: Iterable[str]) -> dict[str, str]:
    """Of the ops that XLA cannot compile for one of the kinds of the devices, why.

    Args:
        step: The step.
        devices: Canonical names of the devices whose programs are compiled.
    """
    kinds = sorted({DeviceName.parse(name).type for name in devices})
    functions = {function.signature.name: function for function in step.graph_def.library.function}
    known = step.graph.op
    refused = {
        node.name: why
        for kind in kinds
        for node in step.graph_def.node
        if node.name in known and node.op not in ("Placeholder", "Const") and (why := refusal(node, functions, kind))
    }
    return refused | (unbounded_lists(step.graph_def.node) if kinds else {})
