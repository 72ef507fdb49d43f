"""Check an emitted graph for GPUs without running it: a kernel for every node, and memory on which both sides agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from partitioner.emit.graph.graph_def import bodies, call_targets
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.xla.calls import compiled_function
from partitioner.emit.xla.constants import constant_arguments
from partitioner.gpu_kernels import endpoints, has_gpu_kernel, op_signature
from partitioner.ir.devices import DeviceName
from partitioner.xla_kernels import called_functions, refusal

_STRING = tf.string.as_datatype_enum
_INT32 = tf.int32.as_datatype_enum
# TensorFlow hands their tensors over to functions as they lie. (It inlines the others, and copies where it must.)
_HANDING_OVER = frozenset({"RemoteCall", "Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile"})
_ANYWHERE = frozenset({"Identity", "NoOp", "Placeholder", "PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A node that would not run on GPUs as it is placed.

    Attributes:
        rule: `kernel`, `string`, `memory`, `target` or `device`.
        function: Name of the function that it stands in; empty for the graph itself.
        node: Its name.
        text: What is wrong.
    """

    rule: str
    function: str
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.function or 'graph'}: {self.node}: {self.text}"


def faults(graph_def: Any, planned: Collection[str]) -> list[Fault]:
    """Everything in a graph and its functions that would not run on GPUs as it is placed.

    Args:
        graph_def: A GraphDef with the library of all functions that it calls.
        planned: Canonical names of the devices of the plan. Their hosts, and this process's, are allowed too.
    """
    allowed = {HOST, *planned, *(DeviceName.parse(name).host.canonical for name in planned)}
    functions = {function.signature.name: function for function in graph_def.library.function}
    compiled = _compiled(graph_def, functions)
    return [
        Fault(rule=rule, function=function, node=node.name, text=text)
        for function, nodes in bodies(graph_def)
        for node, rule, text in (
            _faults_of_compiled(nodes, functions) if function in compiled else _faults_of(nodes, allowed, functions)
        )
    ]


def _compiled(graph_def: Any, functions: Mapping[str, Any]) -> set[str]:
    """Names of the functions that XLA compiles, and of those that they call."""
    stack = [name for _, nodes in bodies(graph_def) for node in nodes if (name := compiled_function(node))]
    found: set[str] = set()
    while stack:
        name = stack.pop()
        if name in functions and name not in found:
            found.add(name)
            stack.extend(called for node in functions[name].node_def for called in called_functions(node))
    return found


def _faults_of_compiled(nodes: Iterable[Any], functions: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    for node in nodes:
        if why := refusal(node, functions, "GPU"):
            yield node, "kernel", why


def _faults_of(
    nodes: Iterable[Any], allowed: Collection[str], functions: Mapping[str, Any]
) -> Iterator[tuple[Any, str, str]]:
    for node, target in call_targets(nodes):
        if target not in allowed:
            yield node, "target", f"a call goes to {target}, which is not in the plan"
    for node in nodes:
        if not node.device:
            if node.op not in _ANYWHERE:
                yield node, "device", f"{node.op} has no device"
            continue
        device = tf.DeviceSpec.from_string(node.device)
        if device.device_index is not None and DeviceName.parse(node.device).canonical not in allowed:
            yield node, "device", f"{node.op} is on {node.device}, which is not in the plan"
        if device.device_type != "GPU":
            continue
        signature = functions[node.op].signature if node.op in functions else op_signature(node.op)
        if node.op not in functions and not has_gpu_kernel(node):
            yield node, "kernel", f"no GPU kernel for {_described(node, signature)}"
            continue
        if name := compiled_function(node):
            yield from ((node, "memory", text) for text in _memory_of_compiled(node, functions[name], functions))
        yield from ((node, rule, text) for rule, text in _memory_faults(node, signature))


def _memory_faults(node: Any, signature: Any) -> Iterator[tuple[str, str]]:
    inputs, outputs = endpoints(node, signature)
    if _STRING in outputs.dtypes:
        yield "string", f"{node.op} makes a string on a GPU"
    if node.op not in _HANDING_OVER or node.attr["_lower_using_switch_merge"].b:
        return
    for what, ends in (("argument", inputs), ("result", outputs)):
        for index, (dtype, on_host) in enumerate(zip(ends.dtypes, ends.on_host, strict=True)):
            if dtype == _INT32 and not on_host:
                yield (
                    "memory",
                    f"{what} {index} of {node.op} is int32 in memory of the GPU; functions take it on the host",
                )


def _memory_of_compiled(node: Any, function: Any, functions: Mapping[str, Any]) -> Iterator[str]:
    """XLA's programs take and give int32 in memory of the GPU, and calls in that of the host."""
    constants = constant_arguments(function, functions)
    for index, dtype in enumerate(node.attr["Tin"].list.type):
        if dtype == _INT32 and index not in constants:
            yield f"argument {index} of a compiled call is int32 and no constant"
    for index, dtype in enumerate(node.attr["Tout"].list.type):
        if dtype == _INT32:
            yield f"result {index} of a compiled call is int32"


def _described(node: Any, signature: Any) -> str:
    types = [
        tf.as_dtype(node.attr[attribute.name].type).name
        for attribute in signature.attr
        if attribute.type == "type" and attribute.name in node.attr
    ]
    return f"{node.op} of {', '.join(types)}" if types else node.op
