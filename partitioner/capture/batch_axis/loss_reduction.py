"""Whether a loss is a mean or a sum over the rows of a batch, by what is known of it."""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.capture.batch_axis.flow import Apart, Flow, Origin, Total, Uniform
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.step import CapturedStep, LossReduction


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
    where = (
        f"{origin.type} in {title!r}" if (title := step.graph.op[origin.op].layer) else f"{origin.type} ({origin.op})"
    )
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
