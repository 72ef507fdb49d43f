"""Read the functions that ops run: their ops, the shapes of these, and how often they run.

Each function is imported into a scratch graph with the argument shapes of its call, so that TensorFlow's own shape
inference gives the shapes inside. Two more things are followed: numbers that are constant, which give the trips of a
loop, and the bytes in lists of tensors, in which a loop saves what its gradient needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

# The public API can neither read a FunctionDef, which has its own names of tensors, nor give
# TensorFlow's shapes of the tensors behind a handle.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops.handle_data_util import copy_handle_data, get_handle_data, set_handle_data

from cost_models.specs import ITEM_BYTES, FunctionRun, TensorSpec
from partitioner.capture.functions.loops import is_idle_sum
from partitioner.capture.functions.reading import Reading
from partitioner.capture.functions.scratch_graph import ScratchGraph
from partitioner.capture.functions.tensor_lists import TensorList, fullest, grown, list_after
from partitioner.capture.functions.trips import count_trips, step
from partitioner.ir.graph_def import in_run_order, producer, prune, tensor_name

LOOPS = frozenset(("While", "StatelessWhile"))
# The first input of a conditional chooses a branch; the branches take the other inputs.
CONDITIONALS = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("While", "StatelessWhile"), ("cond", "body")),
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("Case", "StatelessCase"), ("branches",)),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
_INDEX_DTYPES = ("int32", "int64")
_LOOKUPS = frozenset(("LookupTableFind", "LookupTableFindV2"))
REFINED = frozenset((*_FUNCTIONS, *_LOOKUPS, "TensorListStack", "TensorListPopBack"))
"""For the outputs of these we know more than TensorFlow infers."""

_PART = re.compile(r"(?:^|(?<=/))part(?:_\d+)?/")


@dataclass(frozen=True, kw_only=True)
class _Function:
    """A function, to be imported into a scratch graph of its own.

    Attributes:
        graph: The graph; at first it has only the arguments.
        arguments: The placeholders of the arguments in it.
        nodes: NodeDefs of the function's body.
        tensors: Tensors by the names that nodes use: at first the arguments, in the end all tensors.
        results: Names of the returned tensors.
    """

    graph: Any
    arguments: Sequence[Any]
    nodes: Sequence[Any]
    tensors: dict[str, Any]
    results: Sequence[str]

    def returns(self, index: int) -> str:
        """Name of the tensor that a result is a copy of."""
        return self._origin(self.results[index])

    def saves(self, index: int) -> bool:
        """Whether a result is kept for a gradient."""
        return self.returns(index) in self._saved

    @cached_property
    def _saved(self) -> frozenset[str]:
        return frozenset(
            self._origin(tensor_name(node.input[1])) for node in self.nodes if node.op == "TensorListPushBack"
        )

    @cached_property
    def _copies(self) -> Mapping[str, str]:
        return {node.name: node.input[0] for node in self.nodes if node.op == "Identity"}

    def _origin(self, name: str) -> str:
        while producer(name) in self._copies:
            name = tensor_name(self._copies[producer(name)])
        return name


@dataclass(frozen=True, kw_only=True)
class Inside:
    """An imported function: its arguments and results, its operations in an order in which they can run, and the
    reading of them."""

    arguments: Sequence[Any]
    results: Sequence[Any]
    ops: Sequence[Any]
    reading: Reading

    def run(self, times: int = 1, at_once: int = 1) -> FunctionRun:
        """Several runs of the function, some of which may run at once."""
        reading = self.reading
        return FunctionRun(
            ops=tuple(map(reading.spec, self.ops)),
            times=times,
            held_bytes=reading.buffers.held_bytes(
                self.ops,
                [tensor.name for tensor in self.arguments],
                [tensor.name for tensor in self.results],
                reading.specs,
                min(times, at_once),
            ),
        )


@dataclass(frozen=True)
class GraphReader:
    """Reads graphs that share a library of functions.

    Attributes:
        library: FunctionDefs by name.
        batch_size: Taken for sizes that depend on values.
    """

    library: Mapping[str, Any]
    batch_size: int

    def read(self, nodes: Sequence[Any], graph: Any, tensors: dict[str, Any], reading: Reading) -> list[Any]:
        """Import nodes and add their outputs to `reading`.

        The import stops after each op for whose outputs we know more than TensorFlow infers, so that later shapes
        follow from it. Control edges and colocations are left out: they say nothing about shapes.

        Args:
            nodes: NodeDefs.
            graph: The scratch graph to import them into.
            tensors: Tensors of it by the names that nodes use; the outputs of the nodes are added.
            reading: The reading of these tensors.

        Returns:
            The operations, in an order in which they can run.
        """
        operations: list[Any] = []
        part = tf.compat.v1.GraphDef()
        in_order = ordered(nodes)
        for node in in_order:
            copy = part.node.add()
            copy.CopyFrom(node)
            copy.attr.pop("_class", None)
            del copy.input[:]
            copy.input.extend(reference for reference in node.input if not reference.startswith("^"))
            if node.op in REFINED or node is in_order[-1]:
                ops = _import(part, graph, tensors)
                self.read_ops(ops, reading)
                self._read_constant(node, ops[-1], tensors, reading)
                operations += ops
                del part.node[:]
        return operations

    def _read_constant(self, node: Any, op: Any, tensors: dict[str, Any], reading: Reading) -> None:
        """Replace an item of a list by a constant if all items are equal: gradients of loops save shapes in lists."""
        value = reading.list(op.inputs[0]).value if node.op == "TensorListPopBack" else None
        if value is not None:
            saved = op.outputs[1]
            with op.graph.as_default():
                constant = tf.constant(value, saved.dtype, saved.shape)
            tensors[f"{node.name}:1"] = constant
            self.read_ops([constant.op], reading)

    def read_ops(self, ops: Iterable[Any], reading: Reading) -> None:
        """Add the outputs of these operations, which are in an order in which they can run.

        Unknown sizes depend on values: index vectors count as scalars, any other unknown size as the batch.
        """
        for op in ops:
            runs_functions = op.type in _FUNCTIONS and all(name in self.library for name in _function_names(op))
            if runs_functions:
                self._read_functions(op, reading)
            elif op.type == "TensorListStack":
                held = reading.list(op.inputs[0])
                if held.length is not None and held.item is not None:
                    op.outputs[0].set_shape((held.length, *held.item))
            elif op.type in _LOOKUPS and op.outputs[0].shape.rank is None:  # nothing is known of a table made elsewhere
                _, keys, default = op.inputs
                op.outputs[0].set_shape(keys.shape.concatenate(default.shape))
            # Lists last: what is in them depends on the other tensors.
            for tensor in sorted(op.outputs, key=lambda tensor: tensor.dtype == tf.variant):
                if tensor.dtype == tf.variant and not runs_functions:
                    reading.lists[tensor.name] = list_after(
                        op, reading.list, reading.specs, reading.constant, reading.saved_bytes
                    )
                    _refine(tensor, reading.list(tensor))
                reading.specs[tensor.name] = self._spec(tensor, reading)
            reading.buffers.follow(op, reading.spec)

    def _spec(self, tensor: Any, reading: Reading) -> TensorSpec:
        dtype, shape = tensor.dtype.base_dtype.name, tensor.shape
        sizes = [] if shape.rank is None else shape.as_list()
        if (shape.rank is None or None in sizes) and ITEM_BYTES.get(dtype) and dtype not in _INDEX_DTYPES:
            reading.assumed.append(tensor.name)
        fill = 1 if dtype in _INDEX_DTYPES else self.batch_size
        return TensorSpec(
            shape=tuple(fill if size is None else size for size in sizes),
            dtype=dtype if dtype in ITEM_BYTES else "variant",
            content_bytes=reading.list(tensor).content_bytes,
        )

    def _read_functions(self, op: Any, reading: Reading) -> None:
        given = op.inputs[1:] if op.type in CONDITIONALS else op.inputs
        functions = [self._function(name, op.graph, given) for name in _function_names(op)]
        if op.type in LOOPS:
            condition, body = functions
            self._read_loop(op, condition, body, reading)
            return
        insides = [self._inside(op, function, given, range(len(given)), reading) for function in functions]
        reading.insides[op.name] = tuple(insides)
        reading.runs[op.name] = tuple(inside.run() for inside in insides)
        for index, tensor in enumerate(op.outputs):
            results = [inside.results[index] for inside in insides]
            if all(result.shape.is_fully_defined() and result.shape == results[0].shape for result in results):
                tensor.set_shape(results[0].shape)
            _copy_handle_data(results[0], tensor)
            readings = [inside.reading for inside in insides]
            reading.lists[tensor.name] = fullest(
                inner.list(made) for inner, made in zip(readings, results, strict=True)
            )
            values = {inner.value(made) for inner, made in zip(readings, results, strict=True)}
            if len(values) == 1 and (value := values.pop()) is not None:
                reading.values[tensor.name] = value

    def _read_loop(self, op: Any, condition: _Function, body: _Function, reading: Reading) -> None:
        variables = dict(enumerate(body.tensors))
        fixed = [index for index, name in variables.items() if body.returns(index) == name]
        saved = [index for index in variables if index not in fixed and body.saves(index)]
        asked, done = (self._inside(op, function, op.inputs, fixed, reading, saved) for function in (condition, body))
        reading.insides[op.name] = asked, done
        starts = [reading.value(tensor) for tensor in op.inputs]
        steps = [
            step(argument, result, done.reading.value)
            for argument, result in zip(done.arguments, done.results, strict=True)
        ]
        trips = count_trips(
            asked.results[0],
            {
                argument.name: (start, gain)
                for argument, start, gain in zip(asked.arguments, starts, steps, strict=True)
                if start is not None and gain is not None
            },
            asked.reading.value,
            longest=max((reading.list(tensor).length or 1 for tensor in op.inputs), default=1),
        )
        if not trips.certain:
            reading.assumed_trips[op.name] = trips.count
        reading.runs[op.name] = asked.run(trips.count + 1), done.run(trips.count, op.get_attr("parallel_iterations"))
        reading.passed_on |= {op.outputs[index].name: op.inputs[index].name for index in fixed}
        for index, (before, once, after) in enumerate(zip(op.inputs, done.results, op.outputs, strict=True)):
            if before.shape.is_fully_defined() and before.shape == once.shape:
                after.set_shape(before.shape)
            _copy_handle_data(once, after)
            start, gain = starts[index], steps[index]
            if start is not None and gain is not None:
                reading.values[after.name] = start + trips.count * gain
            reading.lists[after.name] = grown(reading.list(before), done.reading.list(once), trips.count)
            if after.dtype == tf.variant:
                _refine(after, reading.list(after))
                if reading.list(after).content_bytes == reading.list(before).content_bytes:
                    reading.passed_on[after.name] = before.name

    def _inside(
        self,
        op: Any,
        function: _Function,
        given: Sequence[Any],
        fixed: Iterable[int],
        outside: Reading,
        saved: Iterable[int] = (),
    ) -> Inside:
        """A function that `op` runs on `given`, imported.

        The arguments at `fixed` are the same in every run; those at `saved` were kept for a gradient by the previous
        run.
        """
        inner = Reading()
        inner.buffers.saved.update(function.arguments[index].name for index in saved)
        for index, (source, target) in enumerate(zip(given, function.arguments, strict=True)):
            if index in fixed and (value := outside.value(source)) is not None:
                inner.values[target.name] = value
            inner.lists[target.name] = outside.list(source)
            inner.specs[target.name] = self._spec(target, inner)
        inner.assumed.clear()  # They are the caller's.
        ops = self.read(function.nodes, function.graph, function.tensors, inner)
        outside.assumed += [f"{op.name}/{name}" for name in inner.assumed]
        outside.assumed_trips |= {f"{op.name}/{name}": count for name, count in inner.assumed_trips.items()}
        inner.idle_sums[function.graph.name] = frozenset(plain(op.name) for op in ops if is_idle_sum(op))
        for name, idle in inner.idle_sums.items():
            outside.idle_sums[name] = idle & outside.idle_sums.get(name, idle)
        results = [function.tensors[name] for name in function.results]
        return Inside(arguments=function.arguments, results=results, ops=ops, reading=inner)

    def _function(self, name: str, outer: Any, given: Sequence[Any]) -> _Function:
        definition = self.library[name]
        with outer.as_default():
            graph = ScratchGraph(name)
        with graph.as_default():
            graph_def, flat_name = function_def_to_graph_def(definition)
        arguments = [graph.argument(tensor.dtype, tensor.shape) for tensor in given]
        for source, target in zip(given, arguments, strict=True):
            _copy_handle_data(source, target)
        results = [flat_name[definition.ret[result.name]] for result in definition.signature.output_arg]
        names = [f"{argument.name}:0" for argument in definition.signature.input_arg]
        pruned = prune(graph_def, [*map(producer, results), *definition.control_ret.values()])
        nodes = [node for node in pruned.node if f"{node.name}:0" not in names]
        tensors = dict(zip(names, arguments, strict=True))
        return _Function(graph=graph, arguments=arguments, nodes=nodes, tensors=tensors, results=results)


def plain(name: str) -> str:
    """A name in a scratch graph without the prefix of its part."""
    return _PART.sub("", name)


def _function_names(op: Any) -> list[str]:
    values = [op.get_attr(attribute) for attribute in _FUNCTIONS[op.type]]
    return [function.name for value in values for function in (value if isinstance(value, list) else [value])]


def ordered(nodes: Sequence[Any]) -> list[Any]:
    """Nodes in their order, but each after the nodes whose tensors it reads."""
    names = {node.name for node in nodes}
    return in_run_order(nodes, lambda node: [p for r in node.input if r[0] != "^" and (p := producer(r)) in names])


def _import(part: Any, graph: Any, tensors: dict[str, Any]) -> list[Any]:
    """The imported operations of nodes; their outputs are added to `tensors`."""
    own = {node.name for node in part.node}
    outside = {
        tensor_name(reference) for node in part.node for reference in node.input if producer(reference) not in own
    }
    names = [node.name for node in part.node]
    with graph.as_default():
        # In a shared scope, TensorFlow would rename an op that has the name of a scope of an earlier part.
        ops = tf.graph_util.import_graph_def(
            part, input_map={name: tensors[name] for name in outside}, return_elements=names, name="part"
        )
    tensors.update(
        (f"{name}:{index}", tensor)
        for name, op in zip(names, ops, strict=True)
        for index, tensor in enumerate(op.outputs)
    )
    return ops


def _copy_handle_data(source: Any, target: Any) -> None:
    """Copy what TensorFlow knows of the variable or list behind a handle to another handle."""
    if target.dtype in (tf.resource, tf.variant):
        copy_handle_data(source, target)


def _refine(tensor: Any, held: TensorList) -> None:
    """Give TensorFlow the shape of the tensors in a list, where it was not known when the list was made."""
    handle = get_handle_data(tensor)
    if held.item is not None and handle.shape_and_type:
        handle.shape_and_type[0].shape.CopyFrom(tf.TensorShape(held.item).as_proto())
        set_handle_data(tensor, handle)
