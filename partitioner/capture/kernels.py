"""Which ops TensorFlow can only run on a host: those without a GPU kernel for their types."""

from __future__ import annotations

from functools import cache
from typing import Any

# TensorFlow tells its registered kernels only here; the public API has no equivalent.
from tensorflow.python.framework import kernels

# Ops that every device runs, because the runtime handles them itself.
_RUNTIME = frozenset({"Placeholder", "Const", "NoOp", "Identity", "IdentityN", "While", "If", "Case",
                      "StatelessWhile", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"})  # fmt: skip


def is_host_only(node: Any) -> bool:
    """Whether a NodeDef has a CPU kernel but no GPU kernel for its dtypes.

    False for every op when this build of TensorFlow has no GPU kernels at all: then nothing can be told.
    """
    if node.op in _RUNTIME or not _knows_gpu_kernels():
        return False
    constraints = _gpu_constraints(node.op)
    return not any(all(_allows(node, name, allowed) for name, allowed in one) for one in constraints)


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


def _allows(node: Any, attribute: str, allowed: frozenset[int]) -> bool:
    if attribute not in node.attr or not allowed:
        return True
    value = node.attr[attribute]
    return allowed.issuperset(value.list.type) if value.HasField("list") else value.type in allowed
