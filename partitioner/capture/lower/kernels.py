"""Which ops TensorFlow can only run on a host: those without a GPU kernel for their types."""

from __future__ import annotations

from functools import cache
from typing import Any

# TensorFlow lists its registered kernels only here; the public API has no equivalent.
from tensorflow.python.framework import kernels

# Ops that every device runs, because the runtime handles them itself.
_RUNTIME = frozenset({"Placeholder", "Const", "NoOp", "Identity", "IdentityN", "While", "If", "Case",
                      "StatelessWhile", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"})  # fmt: skip


def is_host_only(node: Any) -> bool:
    """Whether a NodeDef has a CPU kernel but no GPU kernel for its dtypes.

    False for every op when this build of TensorFlow has no GPU kernels at all.
    """
    if node.op in _RUNTIME or not _knows_gpu_kernels():
        return False
    return not _has_gpu_kernel(node.op, tuple((name, _types(node, name)) for name in _constrained(node.op)))


@cache
def _knows_gpu_kernels() -> bool:
    return bool(_gpu_constraints("MatMul"))


@cache
def _gpu_constraints(op_type: str) -> tuple[tuple[tuple[str, frozenset[int]], ...], ...]:
    return tuple(
        tuple((c.name, frozenset(c.allowed_values.list.type)) for c in kernel.constraint)
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type in ("GPU", "DEFAULT")  # DEFAULT serves every kind of device
    )


@cache
def _constrained(op_type: str) -> tuple[str, ...]:
    """Attributes that the GPU kernels of an op type constrain."""
    return tuple(dict.fromkeys(name for kernel in _gpu_constraints(op_type) for name, allowed in kernel if allowed))


@cache
def _has_gpu_kernel(op_type: str, types: tuple[tuple[str, tuple[int, ...]], ...]) -> bool:
    given = dict(types)
    return any(
        all(allowed.issuperset(given.get(name, ())) for name, allowed in kernel if allowed)
        for kernel in _gpu_constraints(op_type)
    )


def _types(node: Any, attribute: str) -> tuple[int, ...]:
    """The dtypes in an attribute, as numbers; none where the node does not have it."""
    if attribute not in node.attr:
        return ()
    value = node.attr[attribute]
    return tuple(value.list.type) if value.HasField("list") else (value.type,)
