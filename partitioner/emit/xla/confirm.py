"""Confirm that XLA compiles a function before a step needs it: a step that cannot be compiled would fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Asking for a program without running it has no public API for functions made of graphs.
from tensorflow.python.eager import context

from partitioner.ir.devices import DeviceName
from partitioner.ir.graph_def import producer
from partitioner.ir.step import CapturedStep

Known = Callable[[str], Any]
"""Gives a TensorSpec with known sizes, or a variable's handle, by the name of a tensor; None if it is not known."""

# What else has a kernel was never seen to fail; making the program of a large step takes seconds.
_UNSURE = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "PartitionedCall",
                     "StatefulPartitionedCall", "Where", "Unique", "UniqueV2", "DynamicPartition"})  # fmt: skip
_LOOPS = frozenset({"While", "StatelessWhile"})
SIZES_FROM_OUTSIDE = "a loop needs sizes that another program computes"
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


def objection(function: Any, device: str, op_types: Sequence[str], given: Sequence[Any]) -> str:
    """Why XLA does not compile a function that only has ops with kernels; empty if it does, or if that is not known.

    XLA makes the program for the sizes of the plan, and does not compile it further. It is not asked where it could not
    fail, or where an argument is neither a tensor of known size nor a variable. Sizes that a loop needs, given as an
    argument, do not reach lists of tensors in the gradient of the loop.

    Args:
        function: The function, whose arguments that are handles come last.
        device: The device that is to run it; of another process, nothing is known.
        op_types: Types of its ops.
        given: What is known of its arguments, as `Known` gives it.
    """
    if _UNSURE.isdisjoint(op_types) or not DeviceName.parse(device).is_local:
        return ""
    specs = [value for value in given if isinstance(value, tf.TensorSpec)]
    handles = [value for value in given if isinstance(value, tf.Tensor)]
    if not _LOOPS.isdisjoint(op_types) and any(spec.dtype == tf.int32 for spec in specs):
        return SIZES_FROM_OUTSIDE
    if len(specs) + len(handles) < len(given) or any(spec.dtype == tf.int32 for spec in specs):
        return ""
    runtime: Any = context.context()
    try:
        runtime.get_compiler_ir(
            device_name=device,
            platform_name=None,
            function_name=function.name,
            flat_args=specs,
            captured_inputs=handles,
            stage="hlo",
        )
    except (ValueError, tf.errors.OpError) as error:
        return str(error)
    return ""


def known_of(step: CapturedStep, tensor: str, *, outside: Mapping[str, Any]) -> Any:
    """A `Known` for the tensors of a step at its batch size; what comes from outside, by name, is in `outside`."""
    if producer(tensor) in outside:
        return outside[producer(tensor)]
    known = step.graph.tensor.get(tensor)
    return None if known is None else tf.TensorSpec(known.spec.shape, known.spec.dtype)


def objected_nodes(text: str, nodes: Mapping[str, str]) -> dict[str, str]:
    """The nodes that XLA objects to and why: those it names, or all of them if it names none.

    Args:
        text: What XLA said.
        nodes: Types of the nodes of the function, by name.
    """
    if text == SIZES_FROM_OUTSIDE:
        return {name: text for name, op_type in nodes.items() if op_type in _LOOPS}
    first = text.removeprefix("Failed getting HLO text: '").splitlines()[0].split(". ")[0].rstrip(".")
    named = set(_NODE.findall(text)) & set(nodes)
    return dict.fromkeys(sorted(named or nodes), f"XLA: {first}")
