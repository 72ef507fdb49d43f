"""Build a TensorFlow function of a stage program: its part of the traced graph, from input to output tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

# A function made of a graph rather than traced from Python has no public constructor.
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function

from partitioner.emit.graph.calls import GraphWithCalls
from partitioner.emit.graph.graph_def import add_waits, place_graph_def, register_functions
from partitioner.emit.graph.rewriting import op_by_op_options
from partitioner.emit.graph.variables import held_variable
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.xla.calls import with_compiled_calls
from partitioner.emit.xla.confirm import known_of
from partitioner.emit.xla.refusals import kept_plain
from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution, replica_prefix
from partitioner.ir.graph_def import producer, reference, tensor_name
from partitioner.ir.stage_programs import Gather, ProgramKind, StageProgram, StagePrograms
from partitioner.ir.step import CapturedStep
from partitioner.stages.run_ahead import keeps_order, order_among, run_ahead_limits

_numbers = itertools.count()
_ARGUMENTS = "partition_arguments"  # scope of what is added to a stage's ops
_LETTERS = {
    ProgramKind.ONCE: "I",
    ProgramKind.FORWARD: "F",
    ProgramKind.BACKWARD: "B",
    ProgramKind.WEIGHTS: "W",
    ProgramKind.UPDATE: "U",
}


@dataclass(frozen=True, kw_only=True)
class StageFunction:
    """A stage program that TensorFlow can call.

    Attributes:
        program: The program it runs.
        host: The CPU that runs what its device cannot.
        sums: Gradients that it adds to running totals, in order; the totals are arguments after the inputs.
        captures: Names of the outside tensors (variables' handles, tables), its last arguments.
        is_compiled: Whether XLA compiles what it can of it.
        atomic: TensorFlow's function. Takes the values of `program.inputs`, `sums` and `captures`, and returns those of
            `program.outputs`, and a last value that says that it has ended.
    """

    program: StageProgram
    host: str
    sums: tuple[str, ...]
    captures: tuple[str, ...]
    is_compiled: bool
    atomic: Any

    @cached_property
    def isolated(self) -> Any:
        """A function that only calls `atomic`. See `call`."""
        return _isolated(self.atomic)

    def call(self, values: Sequence[Any]) -> Sequence[Any]:
        """Call it eagerly, or add a call to the graph; call `register` after all calls are made.

        (TensorFlow infers the shapes of a registered function at every call, which takes seconds for some hundred
        calls.)
        """
        if tf.executing_eagerly():
            return self._call_eagerly(values)
        # An op that fails cancels the step before its error has left the function, and then the step reports only
        # cancelled transfers. A RemoteCall has a cancellation of its own within the step's, so the error is reported.
        with tf.device(self.host):
            target = tf.constant(self.program.device, name="target")
        arguments = values or [tf.constant(0.0)]  # it takes at least one argument
        dtypes = [output.dtype for output in self.atomic.function_type.flat_outputs]
        results = tf.raw_ops.RemoteCall(target=target, args=arguments, Tout=dtypes, f=self.isolated.name)
        # Functions take and give int32 in the memory of the host; the call would hand over that of a GPU.
        _keep_on_host(results[0].op, "_input_hostmem", [target.dtype, *(value.dtype for value in arguments)])
        _keep_on_host(results[0].op, "_output_hostmem", dtypes)
        return results

    def register(self) -> None:
        """Add it to the library of the graph that calls it."""
        graph: Any = tf.compat.v1.get_default_graph()
        graph._add_function_recursive(self.isolated)

    def _call_eagerly(self, values: Sequence[Any]) -> Sequence[Any]:
        """Call it from this process, wherever its ops are: only then TensorFlow records where they ran.

        TensorFlow crashes at handles that a worker returns (loops return the handles they read). A function that
        returns handles is called from here without them, for the record, and then on the worker.
        """
        handles = any(output.dtype == tf.resource for output in self.atomic.function_type.flat_outputs)
        if not handles or DeviceName.parse(self.program.device).is_local:
            with tf.device(HOST):
                return self.atomic.call_flat(*values)
        with tf.device(HOST):
            _without_handles(self.atomic).call_flat(*values)
        with tf.device(self.program.device):
            return self.atomic.call_flat(*values)

    @property
    def label(self) -> str:
        """Stage and kind, `0F`, as in the text of an action."""
        return f"{self.program.stage}{_LETTERS[self.program.kind]}"


class StageFunctions:
    """Builds the functions of a step; looks its graph up once.

    Args:
        step: The captured step.
        programs: Its stage programs.
        execution: Device of every op; an op outside of the stages' devices stays there.
        replica: The replica on whose devices the functions run.
    """

    def __init__(self, step: CapturedStep, programs: StagePrograms, execution: Execution, *, replica: int = 0) -> None:
        self._step, self._programs, self._execution, self._replica = step, programs, execution, replica
        self._nodes = {node.name: node for node in step.graph_def.node}
        self._outside = {*step.captures, *step.variables}
        self._kept_plain = kept_plain(step, execution.compiled)
        self._values = dict(step.captures) | {p: held_variable(v).handle for p, v in step.variables.items()}

    def build(self, program: StageProgram, *, accumulate: bool = False) -> StageFunction:
        """The function of a program; with `accumulate`, it adds its gradients to running totals."""
        program = replace(program, device=self._execution.device(program.device, self._replica))
        prefix = replica_prefix(self._replica)
        gathered = self._programs.gathered
        sums = tuple(n for n in program.outputs if gathered.get(n) is Gather.SUM) if accumulate else ()
        body = self._body(program)
        captures = tuple(
            dict.fromkeys(
                p
                for node in body.node
                for r in node.input
                if (p := producer(r)) in self._outside and f"{p}:0" not in program.inputs
            )
        )
        number = next(_numbers)
        devices = self._devices(program)
        placed = place_graph_def(body, devices, suffix=f"stage_{number}", host_of=self._execution.host_of)
        is_compiled = program.device in self._execution.compiled
        if not is_compiled and keeps_order(program.device) and set(devices.values()) == {program.device}:
            aliases, order = self._programs.aliases, order_among(self._programs.stages)
            limits = run_ahead_limits(self._step.graph, program.ops, aliases=aliases, given=program.inputs, order=order)
            add_waits(placed, limits)
        given = {name: self._dtype(name) for name in program.inputs}
        handles = {f"{name}:0": self._dtype(f"{name}:0") for name in captures}
        arguments = _with_arguments(placed, given, handles, device=program.device)
        made = {name: arguments.values.get(name, name) for name in program.outputs}
        totals = _with_sums(placed, made, {name: self._dtype(name) for name in sums}, device=program.device)
        values = dict(zip(arguments.placeholders, arguments.values, strict=True)) | dict(zip(totals, sums, strict=True))
        results = list(made.values())
        compiled = self._compiled(placed, program.device, results, values)
        placed = compiled.graph_def
        register_functions(placed)
        _leave_to_scope(placed, program.device)
        graph: Any = tf.__internal__.FuncGraph(f"stage_{number}")
        with graph.as_default(), tf.device(program.device):
            fetched = [tensor_name(compiled.tensor.get(name, name)) for name in results]
            inside, outside = arguments.placeholders[: len(given)], arguments.placeholders[len(given) :]
            wanted = [*inside, *totals, *outside, *fetched]
            imported = tf.graph_util.import_graph_def(placed, return_elements=wanted, name=prefix.rstrip("/"))
            ended = tf.constant(0.0, name="ended")
        graph.inputs = imported[: len(wanted) - len(fetched)]
        graph.outputs = [*imported[len(wanted) - len(fetched) :], ended]
        effects = set(self._step.side_effects)
        written = dict.fromkeys(compiled.node.get(name, name) for name in program.ops if name in effects)
        graph.control_outputs = [graph.get_operation_by_name(prefix + name) for name in written]
        function = atomic_function.from_func_graph(
            f"partition_{_LETTERS[program.kind]}{program.stage}_{number}", graph, {"_noinline": True}
        )
        return StageFunction(
            host=self._execution.host_of(program.device),
            program=program,
            sums=sums,
            captures=captures,
            is_compiled=is_compiled,
            atomic=function,
        )

    def _compiled(self, placed: Any, device: str, results: Sequence[str], values: Mapping[str, str]) -> GraphWithCalls:
        """The graph of a program with calls of what XLA compiles of it, if its device is one that compiles.

        `values` are the tensors of the step that arguments have the shapes of, by placeholder.
        """
        if device not in self._execution.compiled:
            return GraphWithCalls(graph_def=placed)

        def known(tensor: str) -> Any:
            return known_of(self._step, values.get(tensor, tensor), outside=self._values)

        return with_compiled_calls(placed, {device}, fetched=results, kept_out=self._kept_plain, known=known)

    def _body(self, program: StageProgram) -> Any:
        """The program's nodes; they read aliases by their own names and wait for nothing outside."""
        whole = self._step.graph_def
        body = type(whole)()
        body.versions.CopyFrom(whole.versions)
        body.library.CopyFrom(whole.library)
        names = set(program.ops)
        for name in program.ops:
            node = body.node.add()
            node.CopyFrom(self._nodes[name])
            inputs = [
                reference(self._programs.aliases.get(tensor_name(r), tensor_name(r))) if not r.startswith("^") else r
                for r in node.input
                if not r.startswith("^") or producer(r) in names
            ]
            del node.input[:]
            node.input.extend(inputs)
        return body

    def _devices(self, program: StageProgram) -> dict[str, str]:
        """Device by op: the program's, but for ops on the host of its device."""
        placement, stage_devices = self._execution.placement, self._execution.stage_devices
        return {
            name: program.device
            if (own := placement[name]) in stage_devices
            else self._execution.device(own, self._replica)
            for name in program.ops
        }

    def _dtype(self, tensor: str) -> Any:
        name = producer(tensor)
        if name in self._outside:
            return tf.resource if name in self._step.variables else self._step.captures[name].dtype
        return tf.as_dtype(self._step.graph.tensor[tensor].spec.dtype)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Names of a function's placeholders, in order, and by input tensor, the tensor that stands for it."""

    placeholders: Sequence[str]
    values: Mapping[str, str]


def _with_arguments(graph_def: Any, given: Mapping[str, Any], handles: Mapping[str, Any], *, device: str) -> _Arguments:
    """Let the nodes of `graph_def` read placeholders in place of these tensors (dtypes by name).

    They are added as nodes, because TensorFlow's Python takes much longer to make an op than to import it.
    """
    nodes = list(graph_def.node)
    placeholders, values = [], dict[str, str]()
    for index, (name, dtype) in enumerate([*given.items(), *handles.items()]):
        argument = graph_def.node.add(name=f"{_ARGUMENTS}/{index}", op="Placeholder")
        argument.attr["dtype"].type = dtype.as_datatype_enum
        argument.attr["shape"].shape.unknown_rank = True
        placeholders.append(f"{argument.name}:0")
        values[name] = placeholders[-1]
        if name in given:
            # A loop would take an argument on the argument's device, maybe another device: an identity copies it here.
            here = graph_def.node.add(
                name=f"{_ARGUMENTS}/{index}_here", op="Identity", input=[argument.name], device=device
            )
            here.attr["T"].type = dtype.as_datatype_enum
            values[name] = f"{here.name}:0"
    for node in nodes:
        for index, read in enumerate(node.input):
            if not read.startswith("^") and (value := values.get(tensor_name(read))) is not None:
                node.input[index] = reference(value)
    return _Arguments(placeholders, values)


def _with_sums(graph_def: Any, made: dict[str, str], sums: Mapping[str, Any], *, device: str) -> list[str]:
    """Add gradients (dtypes by name) to totals, which stand for them in `made` then; returns the totals' placeholders.

    The sums are nodes of the program, so that XLA makes no kernel of its own of each.
    """
    totals = []
    for index, (name, dtype) in enumerate(sums.items()):
        total = graph_def.node.add(name=f"{_ARGUMENTS}/total_{index}", op="Placeholder")
        total.attr["dtype"].type = dtype.as_datatype_enum
        total.attr["shape"].shape.unknown_rank = True
        reads = [total.name, reference(made[name])]
        added = graph_def.node.add(name=f"{_ARGUMENTS}/sum_{index}", op="AddV2", input=reads, device=device)
        added.attr["T"].type = dtype.as_datatype_enum
        made[name] = f"{added.name}:0"
        totals.append(f"{total.name}:0")
    return totals


def _leave_to_scope(graph_def: Any, device: str) -> None:
    """Leave a device to the scope of the import: a scope for each node would take most of the time."""
    for node in graph_def.node:
        if node.device == device:
            node.device = ""


def _isolated(function: Any) -> Any:
    """A function on one device that calls `function`, which may have ops on others."""
    called = function.cached_definition.signature
    runtime: Any = context.context()
    definition = type(function.cached_definition)()
    definition.signature.name = f"{called.name}_isolated"
    definition.signature.input_arg.extend(called.input_arg)
    definition.signature.output_arg.extend(called.output_arg)
    definition.signature.control_output.append("call")
    if not called.input_arg:
        definition.signature.input_arg.add(name="unused", type=tf.float32.as_datatype_enum)
    is_stateful = function.call_options.is_stateful
    call = definition.node_def.add(name="call", op="StatefulPartitionedCall" if is_stateful else "PartitionedCall")
    call.input.extend(argument.name for argument in called.input_arg)
    call.attr["Tin"].list.type.extend(argument.type for argument in called.input_arg)
    call.attr["Tout"].list.type.extend(output.type for output in called.output_arg)
    call.attr["f"].func.name = called.name
    call.attr["config_proto"].s = op_by_op_options().config_proto_serialized
    for index, output in enumerate(called.output_arg):
        definition.ret[output.name] = f"call:output:{index}"
    definition.control_ret["call"] = "call"
    runtime.add_function_def(definition)
    return atomic_function.AtomicFunction(
        called.name + "_isolated", runtime, function.function_type, children=[function, *function.children]
    )


def run_independently(tensor: Any) -> None:
    """Let the call that makes a tensor wait for its inputs and its control inputs only.

    TensorFlow would chain all calls with state (a random generator, a Python function) in the order they are made in,
    whichever stage they belong to, and no two devices would ever work at the same time.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    if graph.experimental_acd_manager is not None:
        graph.experimental_acd_manager.run_independently(tensor.op)


def _keep_on_host(op: Any, attribute: str, dtypes: Sequence[Any]) -> None:
    """List the int32 among the inputs or outputs of an op as in the memory of the host."""
    indices = [index for index, dtype in enumerate(dtypes) if dtype == tf.int32]
    op._set_attr(attribute, tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=indices)))


def _without_handles(function: Any) -> Any:
    """A function that calls `function` and returns its results without handles."""
    graph = function.graph
    outputs, effects = graph.outputs, graph.control_outputs
    graph.outputs = [output for output in outputs if output.dtype != tf.resource]
    graph.control_outputs = list({op.name: op for op in [*effects, *(output.op for output in outputs)]}.values())
    try:
        return atomic_function.from_func_graph(f"partition_seen_{next(_numbers)}", graph, {"_noinline": True})
    finally:
        graph.outputs, graph.control_outputs = outputs, effects
