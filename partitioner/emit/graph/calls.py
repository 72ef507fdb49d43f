"""Put calls of functions in place of nodes of a graph: of what XLA compiles, and of what is to be timed as one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

# A function made of a graph rather than traced from Python has no public constructor.
from tensorflow.python.eager.polymorphic_function import atomic_function

from partitioner.emit.graph.dtypes import output_dtypes
from partitioner.emit.graph.rewriting import op_by_op_options
from partitioner.emit.xla.clusters import is_constant
from partitioner.emit.xla.constants import needed_as_constants
from partitioner.gpu_kernels import op_signature
from partitioner.ir.graph_def import in_run_order, needed, producer, reference, tensor_name
from partitioner.ir.sizes import Node, repeated_for_sizes, sizes_among

MUST_COMPILE = "_XlaMustCompile"
_SCOPE, _COMPILED = "called", "compiled"
_FUNCTION = "partition_"
_LOOPS = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
_INT32, _INT64 = tf.int32.as_datatype_enum, tf.int64.as_datatype_enum
_RESOURCE = tf.resource.as_datatype_enum
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWithCalls:
    """A graph with calls of functions in place of some of its nodes.

    Attributes:
        graph_def: The graph.
        tensor: New name of each tensor that a call makes, as a node refers to it.
        node: The call by each node that went into one.
    """

    graph_def: Any
    tensor: Mapping[str, str] = field(default_factory=dict)
    node: Mapping[str, str] = field(default_factory=dict)

    def then(self, other: GraphWithCalls) -> GraphWithCalls:
        """The graph of `other`, which has put more calls in this one."""
        renamed = {tensor: other.tensor.get(tensor_name(new), new) for tensor, new in self.tensor.items()}
        return replace(other, tensor={**other.tensor, **renamed}, node={**other.node, **self.node})


def with_called_loops(graph_def: Any, *, fetched: Collection[str] = ()) -> GraphWithCalls:
    """Put a call in place of each loop and each branch, so that each can be timed: of ops in their bodies, TensorFlow's
    profiler records the longer ones alone.

    Args:
        graph_def: A placed GraphDef.
        fetched: Names of the tensors that are read outside of the graph.
    """
    graph = CallingGraph(graph_def, fetched)
    loops = [node for node in graph_def.node if node.op in _LOOPS]
    return graph.with_calls(graph.calls([([node.name], node.device) for node in loops]))


def ops_of_calls(graph_def: Any) -> dict[str, tuple[str, ...]]:
    """By call that was put in a graph, the names of the nodes of its function."""
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    return {
        node.name: tuple(inner.name for inner in functions[name])
        for node in graph_def.node
        if (name := node.attr["f"].func.name).startswith(_FUNCTION) and name in functions
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call: its nodes in the new graph, what it is given, what it makes by name, and the nodes in it."""

    name: str
    device: str
    nodes: Sequence[Any]
    given: Sequence[str]
    carried: Collection[str]
    made: Mapping[str, str]
    inside: Collection[str]
    function: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Nodes that go into one call, in an order in which they can run; its function's body, and what that is given."""

    nodes: Sequence[str]
    device: str
    body: Any
    given: Sequence[str]


class CallingGraph:
    """A placed graph in which calls of functions take the place of nodes.

    Args:
        graph_def: The GraphDef.
        fetched: Names of the tensors that are read outside of the graph.
    """

    def __init__(self, graph_def: Any, fetched: Collection[str]) -> None:
        self._graph_def, self._fetched = graph_def, frozenset(fetched)
        self.nodes = {node.name: node for node in graph_def.node}
        self._functions = {function.signature.name: function for function in graph_def.library.function}

    def calls(self, parts: Iterable[tuple[Sequence[str], str]], *, is_compiled: bool = False) -> list[Call]:
        """Calls of functions of nodes, which enter the runtime.

        Args:
            parts: Names of nodes of each, in an order in which they can run, and the device that runs them. No node is
                in two.
            is_compiled: Whether XLA compiles the functions. They compute again the sizes that they need of each other;
                other int32 cross as int64, unless XLA wants constants.
        """
        whole = list(parts)
        repeated = self._repeated(whole) if is_compiled else [set[str]() for _ in whole]
        made = [self._part(nodes, device, also) for (nodes, device), also in zip(whole, repeated, strict=True)]
        inside = {name for part in made for name in part.nodes}
        rest = (node for node in self._graph_def.node if node.name not in inside)
        read = self._fetched.union(tensor for node in rest for tensor in _data(node))
        read = read.union(*(part.given for part in made))
        return [self._call(part, read, is_compiled=is_compiled) for part in made]

    def _repeated(self, parts: Iterable[tuple[Sequence[str], str]]) -> Iterator[set[str]]:
        """For each part that XLA compiles, the nodes of other parts of its device that it repeats to know sizes."""
        nodes = list(map(Node.of, in_run_order(self._graph_def.node, self._needs)))
        sizes = sizes_among(nodes)
        of_device: dict[str, set[str]] = {}
        for names, device in parts:
            of_device.setdefault(device, set()).update(n for n in names if _is_repeatable(self.nodes[n]))
        outside = {name for name, node in self.nodes.items() if is_constant(node) or _is_handle(node)}
        for names, device in parts:
            present = outside.union(names)
            read = {t for name in names for t in _data(self.nodes[name]) if producer(t) not in present}
            yield repeated_for_sizes(read, nodes, sizes, present=present, repeatable=of_device[device])

    def _needs(self, node: Any) -> list[str]:
        return [name for read in node.input if (name := producer(read)) in self.nodes]

    def _part(self, nodes: Sequence[str], device: str, repeated: Collection[str]) -> _Part:
        body = self._body({*nodes, *repeated})
        inside = {node.name for node in body.node}
        given = list(dict.fromkeys(t for node in body.node for t in _data(node) if producer(t) not in inside))
        given.sort(key=lambda name: self._dtype(name) == _RESOURCE)
        return _Part(nodes=nodes, device=device, body=body, given=given)

    def _call(self, part: _Part, read_outside: Collection[str], *, is_compiled: bool) -> Call:
        outputs = [
            tensor
            for name in part.nodes
            for index in range(len(output_dtypes(self.nodes[name], self._functions)))
            if (tensor := f"{name}:{index}") in read_outside
        ]
        body, given, device, members = part.body, part.given, part.device, frozenset(part.nodes)
        carried = self._carried(body, given, outputs) if is_compiled else set[str]()
        name = f"{_COMPILED if is_compiled else _SCOPE}_{next(_numbers)}"
        function = _function(f"{_FUNCTION}{name}", body, [(n, self._dtype(n)) for n in given], outputs, carried)
        inside = members.union(node.name for node in body.node if is_constant(node))
        waits = dict.fromkeys(
            read
            for member in part.nodes
            for read in self.nodes[member].input
            if read.startswith("^") and producer(read) not in inside
        )
        casts = _Casts(name, device)
        reads = [casts.widened(n) if n in carried else reference(n) for n in given]
        call = _call_node(name, function, device, [*reads, *waits], is_compiled=is_compiled)
        made = {n: f"{name}:{index}" for index, n in enumerate(outputs)}
        made |= {n: casts.narrowed(made[n]) for n in outputs if n in carried}
        return Call(
            name=name,
            device=device,
            nodes=[call, *casts.nodes],
            given=given,
            carried=carried,
            made=made,
            inside=members,
            function=function,
        )

    def with_calls(self, calls: Sequence[Call]) -> GraphWithCalls:
        """The graph with the calls in place of their nodes."""
        made: dict[str, str] = {tensor: new for call in calls for tensor, new in call.made.items()}
        inside = {name: call.name for call in calls for name in call.inside}
        result = type(self._graph_def)()
        result.versions.CopyFrom(self._graph_def.versions)
        result.library.CopyFrom(self._graph_def.library)
        for call in calls:
            functions = [call.function, *call.function.children]
            result.library.function.extend(function.cached_definition for function in functions)
        result.node.extend(node for node in self._graph_def.node if node.name not in inside)
        result.node.extend(node for call in calls for node in call.nodes)
        for node in result.node:
            reads: list[str] = list(node.input)
            data = [made.get(tensor_name(read), read) for read in reads if not read.startswith("^")]
            waits = [f"^{inside.get(producer(read), producer(read))}" for read in reads if read.startswith("^")]
            del node.input[:]
            node.input.extend([*map(reference, data), *dict.fromkeys(waits)])
        _drop_unread_constants(result, {producer(name) for name in self._fetched})
        return GraphWithCalls(graph_def=result, tensor=made, node=inside)

    def _body(self, members: Collection[str]) -> Any:
        """The members, with the constants that they read, without devices and without waiting for others."""
        body = type(self._graph_def)()
        body.versions.CopyFrom(self._graph_def.versions)
        body.library.CopyFrom(self._graph_def.library)
        read = {producer(r) for name in members for r in self.nodes[name].input}
        constants = {name for name in read if name in self.nodes and is_constant(self.nodes[name])}
        for node in self._graph_def.node:
            if node.name in members or node.name in constants:
                new = body.node.add()
                new.CopyFrom(node)
                new.device = ""
                del new.input[:]
                new.input.extend(
                    r for r in node.input if not r.startswith("^") or producer(r) in members or producer(r) in constants
                )
        return body

    def _carried(self, body: Any, given: Collection[str], outputs: Collection[str]) -> set[str]:
        """Tensors that enter or leave a compiled function as int64."""
        constants = needed_as_constants(body.node, self._functions)
        return {n for n in (*given, *outputs) if self._dtype(n) == _INT32 and not (n in given and n in constants)}

    def _dtype(self, tensor: str) -> int:
        name, index = tensor.rsplit(":", 1)
        return output_dtypes(self.nodes[name], self._functions)[int(index)]


class _Casts:
    """Casts beside a call, of int32 that cross as int64."""

    def __init__(self, call: str, device: str) -> None:
        self._call, self._device = call, device
        self.nodes: list[Any] = []

    def widened(self, tensor: str) -> str:
        return self._cast(reference(tensor), tf.int32, tf.int64)

    def narrowed(self, tensor: str) -> str:
        return self._cast(reference(tensor), tf.int64, tf.int32)

    def _cast(self, read: str, source: Any, target: Any) -> str:
        name = f"{self._call}_{target.name}_{len(self.nodes)}"
        node = tf.compat.v1.NodeDef(name=name, op="Cast", input=[read], device=self._device)
        node.attr["SrcT"].type, node.attr["DstT"].type = source.as_datatype_enum, target.as_datatype_enum
        node.attr["Truncate"].b = False
        self.nodes.append(node)
        return name


def _function(
    name: str, body: Any, given: Sequence[tuple[str, int]], outputs: Sequence[str], carried: Collection[str]
) -> Any:
    """A function of nodes, from what they are given to their outputs; those of `carried` are int64 outside of it."""
    nodes, values = list(body.node), dict[str, str]()
    for index, (tensor, dtype) in enumerate(given):
        argument = body.node.add(name=f"{_SCOPE}_arguments/{index}", op="Placeholder")
        argument.attr["dtype"].type = _INT64 if tensor in carried else dtype
        argument.attr["shape"].shape.unknown_rank = True
        values[tensor] = argument.name
        if tensor in carried:
            here = body.node.add(name=f"{argument.name}_int32", op="Cast", input=[argument.name])
            here.attr["SrcT"].type, here.attr["DstT"].type = _INT64, _INT32
            here.attr["Truncate"].b = False
            values[tensor] = here.name
    for node in nodes:
        for index, read in enumerate(node.input):
            if not read.startswith("^"):
                node.input[index] = values.get(tensor_name(read), read)
    graph: Any = tf.__internal__.FuncGraph(name)
    with graph.as_default():
        wanted = [f"{_SCOPE}_arguments/{index}:0" for index in range(len(given))]
        tensors = tf.graph_util.import_graph_def(body, return_elements=[*wanted, *outputs], name="")
        graph.inputs = tensors[: len(given)]
        graph.outputs = [
            tf.cast(tensor, tf.int64, name=f"{_SCOPE}_result") if output in carried else tensor
            for output, tensor in zip(outputs, tensors[len(given) :], strict=True)
        ]
    graph.control_outputs = [graph.get_operation_by_name(n.name) for n in nodes if _has_effects(graph, n.name)]
    return atomic_function.from_func_graph(name, graph, {"_noinline": True})


def _is_repeatable(node: Any) -> bool:
    """Whether a node may run again for its shape: it changes nothing."""
    signature = op_signature(node.op)
    return node.op == "ReadVariableOp" or (signature is not None and not signature.is_stateful)


def _is_handle(node: Any) -> bool:
    return node.op == "Placeholder" and node.attr["dtype"].type == _RESOURCE


def _data(node: Any) -> list[str]:
    """The tensors that a node reads."""
    return [tensor_name(read) for read in node.input if not read.startswith("^")]


def _has_effects(graph: Any, name: str) -> bool:
    op = graph.get_operation_by_name(name)
    return op.op_def.is_stateful and op.type != "ReadVariableOp"


def _call_node(name: str, function: Any, device: str, inputs: Sequence[str], *, is_compiled: bool) -> Any:
    signature = function.cached_definition.signature
    kind = "StatefulPartitionedCall" if function.call_options.is_stateful else "PartitionedCall"
    call = tf.compat.v1.NodeDef(name=name, op=kind, device=device, input=inputs)
    call.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
    call.attr["Tout"].list.type.extend(output.type for output in signature.output_arg)
    call.attr["f"].func.name = signature.name
    call.attr["config_proto"].s = op_by_op_options().config_proto_serialized
    if is_compiled:
        call.attr[MUST_COMPILE].b = True
    return call


def _drop_unread_constants(graph_def: Any, fetched: Collection[str]) -> None:
    """Drop the constants that are read in calls alone."""
    nodes = {node.name: node for node in graph_def.node}
    live = needed(nodes, [name for name, node in nodes.items() if not is_constant(node) or name in fetched])
    kept = [node for node in graph_def.node if node.name in live]
    del graph_def.node[:]
    graph_def.node.extend(kept)
