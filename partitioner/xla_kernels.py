"""What TensorFlow's kernel registry says of an op under XLA: whether it can be compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import tensorflow as tf

# The registry of kernels has no public API.
from tensorflow.python.framework import kernels

_NOT_IN_MEMORY_OF_DEVICES = frozenset({tf.string.as_datatype_enum})
# XLA leaves out checks and with them their texts, if these are constants.
_MAY_HAVE_STRINGS = frozenset({"Assert", "Const"})
# The runtime calls or resolves these itself; XLA compiles what they call.
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_KIND = {"CPU": "XLA_CPU_JIT", "GPU": "XLA_GPU_JIT"}


def refusal(node: Any, functions: Mapping[str, Any], device_type: str) -> str:
    """Why XLA cannot compile a node on a kind of device; empty if it can.

    Args:
        node: A NodeDef.
        functions: The function library, FunctionDefs by name: what a node calls must be compiled too.
        device_type: `CPU` or `GPU`.
    """
    for name in called_functions(node):
        body = functions[name].node_def if name in functions else ()
        if unbounded := unbounded_lists(body):
            return next(iter(unbounded.values()))
        for inner in body:
            if why := refusal(inner, functions, device_type):
                return why
    if node.op in functions or node.op in _CALLS:
        return ""
    if node.op not in _MAY_HAVE_STRINGS and _has_strings(node):
        return f"{node.op} works on strings"
    return "" if _fits(node, device_type) else f"XLA has no {device_type} kernel for {node.op}"


def unbounded_lists(nodes: Iterable[Any]) -> dict[str, str]:
    """The lists among NodeDefs that may grow without limit, for which XLA has no memory, and why each is refused.

    TensorFlow makes one for each tensor that a loop without `maximum_iterations` saves for its gradient.
    """
    by_name = {node.name: node for node in nodes}
    found = {}
    for node in by_name.values():
        limit = by_name.get(node.input[1].split(":")[0]) if node.op == "EmptyTensorList" else None
        if limit is not None and limit.op == "Const" and _is_negative(limit.attr["value"].tensor):
            found[node.name] = "a loop without maximum_iterations saves tensors for its gradient"
    return found


def _is_negative(tensor: Any) -> bool:
    return bool(tf.make_ndarray(tensor) < 0)


def called_functions(node: Any) -> list[str]:
    """Names of the functions that a NodeDef may call, the name of its op among them."""
    names = [node.op]
    for value in node.attr.values():
        names += [value.func.name] if value.HasField("func") else [function.name for function in value.list.func]
    return names


def _has_strings(node: Any) -> bool:
    types = [value.type for value in node.attr.values() if value.HasField("type")]
    return not _NOT_IN_MEMORY_OF_DEVICES.isdisjoint(types)


def _fits(node: Any, device_type: str) -> bool:
    if node.op == "NoOp":
        return True
    return any(
        all(_types(node, name) <= allowed for name, allowed in kernel if allowed)
        for kernel in _kernels(node.op, _KIND.get(device_type, ""))
    )


def _types(node: Any, attribute: str) -> frozenset[int]:
    if attribute not in node.attr:
        return frozenset()
    value = node.attr[attribute]
    return frozenset(value.list.type if value.HasField("list") else [value.type])


@cache
def _kernels(op_type: str, kind: str) -> tuple[tuple[tuple[str, frozenset[int]], ...], ...]:
    """Of each kernel, the dtypes that it allows by attribute."""
    _register_kernels()
    return tuple(
        tuple((c.name, frozenset(c.allowed_values.list.type)) for c in kernel.constraint)
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type == kind
    )


@cache
def _register_kernels() -> None:
    """TensorFlow lists XLA's kernels once it has compiled something."""
    with tf.init_scope(), tf.device("CPU:0"):
        tf.function(lambda: tf.constant(0.0) + 1.0, jit_compile=True)()
