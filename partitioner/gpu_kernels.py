"""What TensorFlow's kernel registry says of an op on a GPU: whether there is a kernel, and which memory it works in.

The registry of the wheels for x86-64 lists the kernels for GPUs on machines without a GPU too. Builds without CUDA list
none; `knows_gpu_kernels` tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

# The registries of kernels and ops have no public API.
from tensorflow.python.framework import kernels, op_def_registry

from partitioner.ir.op_graph import RECURRENT, OpGraph

# The runtime runs these on every device, without a kernel or by rewriting them.
_RUNTIME = frozenset({"Placeholder", "NoOp", "Identity", "IdentityN", "While", "If", "Case",
                      "StatelessWhile", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"})  # fmt: skip
# Their memory follows the dtypes alone, whatever kernel is registered.
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient", "While"})
_ALWAYS_ON_HOST = frozenset({tf.string.as_datatype_enum, tf.resource.as_datatype_enum})
_INT32 = tf.int32.as_datatype_enum

Constraints = tuple[tuple[str, frozenset[int]], ...]


@dataclass(frozen=True, slots=True)
class _Kernel:
    constraints: Constraints
    host_memory: frozenset[str]
    priority: int


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Inputs or outputs of a node, in order.

    Attributes:
        dtypes: Numbers of the dtypes.
        on_host: Whether each lies in the memory of the host when the node runs on a GPU.
    """

    dtypes: tuple[int, ...]
    on_host: tuple[bool, ...]


def knows_gpu_kernels() -> bool:
    """Whether this build of TensorFlow lists kernels for GPUs."""
    return bool(_kernels("MatMul"))


def notes_on_gpus(graph: OpGraph, gpus_present: bool) -> tuple[str, ...]:
    """What a plan for GPUs that was made here cannot know.

    Args:
        graph: The step.
        gpus_present: Whether this process has GPUs: Keras then makes one op of cuDNN of a recurrent layer.
    """
    notes = []
    if not knows_gpu_kernels():
        notes.append("this TensorFlow is built without GPUs: which ops only a host can run is not known")
    recurrent = [layer.path for layer in graph.layers if layer.class_name in RECURRENT]
    if recurrent and not gpus_present:
        notes.append(f"where there is a GPU, cuDNN runs {', '.join(recurrent[:3])} as one op; here it is many ops")
    return tuple(notes)


def is_host_only(node: Any) -> bool:
    """Whether a NodeDef has no GPU kernel for its dtypes; False where this build lists no GPU kernels at all."""
    if node.op in _RUNTIME or not knows_gpu_kernels():
        return False
    return _kernel(node) is None


def has_gpu_kernel(node: Any) -> bool:
    """Whether a GPU has a kernel for a NodeDef, constants and placeholders included."""
    return node.op in _CALLS or _kernel(node) is not None


def endpoints(node: Any, signature: Any) -> tuple[Endpoints, Endpoints]:
    """Inputs and outputs of a node that runs on a GPU.

    Source: MemoryTypesForNode in memory_types.cc of TensorFlow: what the kernel says, strings and handles on the host
    always, int32 on the host for calls, and what `_input_hostmem` and `_output_hostmem` list.

    Args:
        node: A NodeDef.
        signature: Its OpDef, or the signature of the function that it names.
    """
    kernel = None if node.op in _CALLS else _kernel(node)
    return tuple(  # pyright: ignore[reportReturnType]
        _endpoints(node, arguments, kernel, attribute)
        for arguments, attribute in ((signature.input_arg, "_input_hostmem"), (signature.output_arg, "_output_hostmem"))
    )


def op_signature(op_type: str) -> Any:
    """The OpDef of a type; None if TensorFlow has no such op (the name of a function)."""
    return op_def_registry.get(op_type)


def _endpoints(node: Any, arguments: Sequence[Any], kernel: _Kernel | None, attribute: str) -> Endpoints:
    dtypes: list[int] = []
    on_host: list[bool] = []
    for argument in arguments:
        own = _argument_dtypes(node, argument)
        dtypes += own
        on_host += [argument.name in kernel.host_memory if kernel else dtype == _INT32 for dtype in own]
    listed = set(node.attr[attribute].list.i) if attribute in node.attr else set[int]()
    on_host = [
        host or dtype in _ALWAYS_ON_HOST or index in listed
        for index, (dtype, host) in enumerate(zip(dtypes, on_host, strict=True))
    ]
    return Endpoints(tuple(dtypes), tuple(on_host))


def _argument_dtypes(node: Any, argument: Any) -> list[int]:
    if argument.type_list_attr:
        return list(node.attr[argument.type_list_attr].list.type)
    count = node.attr[argument.number_attr].i if argument.number_attr else 1
    return [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count


@cache
def _kernels(op_type: str) -> tuple[_Kernel, ...]:
    return tuple(
        _Kernel(
            constraints=tuple((c.name, frozenset(c.allowed_values.list.type)) for c in kernel.constraint),
            host_memory=frozenset(kernel.host_memory_arg),
            priority=kernel.priority,
        )
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label  # DEFAULT serves every kind of device
    )


@cache
def _constrained(op_type: str) -> tuple[str, ...]:
    """Attributes that its GPU kernels ask for."""
    return tuple(dict.fromkeys(name for kernel in _kernels(op_type) for name, allowed in kernel.constraints if allowed))


def _kernel(node: Any) -> _Kernel | None:
    return _matching(node.op, tuple((name, _types(node, name)) for name in _constrained(node.op)))


@cache
def _matching(op_type: str, types: tuple[tuple[str, tuple[int, ...]], ...]) -> _Kernel | None:
    given: Mapping[str, tuple[int, ...]] = dict(types)
    fitting = [
        kernel
        for kernel in _kernels(op_type)
        if all(allowed.issuperset(given.get(name, ())) for name, allowed in kernel.constraints if allowed)
    ]
    return max(fitting, key=lambda kernel: kernel.priority, default=None)


def _types(node: Any, attribute: str) -> tuple[int, ...]:
    """What an attribute says, numbers of dtypes; none where the node does not have it."""
    if attribute not in node.attr:
        return ()
    value = node.attr[attribute]
    return tuple(value.list.type) if value.HasField("list") else (value.type,)
