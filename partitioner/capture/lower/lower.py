"""Lower a trace to an op graph: prune unused ops, infer shapes, and group ops."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

# TensorFlow exports no way to ask for it.
from tensorflow.python.ops.summary_ops_v2 import has_default_writer

from cost_models.specs import TensorSpec
from partitioner.capture.batch_axis.step import with_rows
from partitioner.capture.functions.loops import drop_idle_sums, only_reads, pass_on_idle_variables
from partitioner.capture.functions.reading import Reading
from partitioner.capture.lower.attributes import readable_attributes
from partitioner.capture.lower.batching import fixed_batch, settled_fields
from partitioner.capture.lower.graph_def import (
    READ,
    bypass_identity_n,
    call_functions,
    limit_trips_at_once,
    remove_colocations,
    share_reads,
)
from partitioner.capture.lower.grouping import RawOp, colocation_groups, parameter_of_slots
from partitioner.capture.lower.powers import write_out_powers
from partitioner.capture.lower.shapes import settle_shapes
from partitioner.capture.lower.sums import partners_of_sums, sum_in_steps
from partitioner.capture.trace.objective import TrainingObjective
from partitioner.capture.trace.trace import Trace, trace_step
from partitioner.gpu_kernels import is_host_only
from partitioner.ir.graph_def import in_run_order, producer, prune, tensor_name
from partitioner.ir.op_graph import Op, OpGraph, Phase, Tensor, Variable, VariableKind
from partitioner.ir.step import RESULTS, CapturedStep, StepKind


def capture_step(
    model: keras.Model,
    kind: StepKind,
    specs: tuple[Any, Any, Any],
    *,
    batch_size: int,
    objective: TrainingObjective | None = None,
) -> CapturedStep:
    """Trace a step of `model` and lower it to an op graph with the shapes of a batch of `batch_size`.

    Raises:
        ModelError: The model cannot be traced.
    """
    trace = trace_step(model, kind, specs, objective)
    captures = {placeholder.op.name: external for external, placeholder in trace.graph.captures}
    variables = _captured_variables(trace, captures, model, objective)
    names, phases = _unique_names(variables), _phases(trace)
    order: dict[str, float] = {op.name: index for index, op in enumerate(trace.graph.get_operations())}
    graph_def, differentiates, traced = _rewritten(trace, kind, phases, order, names)
    outputs = {key: tf.nest.map_structure(_tensor_names, value) for key, value in trace.outputs.items()}
    needed = _names_in(outputs, *outputs)
    side_effects = _side_effects(trace, graph_def)
    inputs = {tensor.op.name: tensor for tensor in trace.inputs}
    roots = [*map(producer, needed), *side_effects, *inputs]
    graph_def = _pruned(graph_def, roots, needed)
    live = {node.name for node in graph_def.node}
    captures = {name: external for name, external in captures.items() if name in live}
    graph_def, settled = _settled(graph_def, inputs, captures, batch_size, needed, roots)

    graph = _op_graph(
        trace,
        nodes=_topological(graph_def, order),
        traced=traced,
        phases=phases,
        differentiates=differentiates,
        specs=settled.specs,
        variables={name: variable for name, variable in variables.items() if name in live},
        names=names,
        tables={name for name, external in captures.items() if external.dtype == tf.resource and name not in variables},
    )
    results = _results(kind, outputs, objective)
    step = CapturedStep(
        kind=kind,
        graph=OpGraph(
            name=model.name,
            batch_size=batch_size,
            training=kind is StepKind.TRAIN,
            layers=trace.layers,
            inputs=tuple(tensor.name for tensor in trace.inputs),
            outputs=tuple(dict.fromkeys(_names_in(outputs, *results))),
            **graph,
            **settled_fields(settled, graph["tensors"]),
        ),
        graph_def=graph_def,
        specs=specs,
        inputs=tuple(tensor.name for tensor in trace.inputs),
        captures=captures,
        variables={name: variable for name, variable in variables.items() if name in live},
        variable_names={name: text for name, text in names.items() if name in live},
        outputs=outputs,
        results=results,
        side_effects=side_effects,
        trainable=trace.trainable,
        optimizers=_optimizers(trace),
        seed=trace.seed.name if trace.seed is not None and trace.seed.op.name in live else "",
        lacks_summaries=_lacks_summaries(trace),
        fixed_batch=fixed_batch(trace),
    )
    return with_rows(
        step,
        settled,
        static_shape=lambda name: traced[producer(name)].outputs[int(name.partition(":")[2])].shape,
        settled_for=lambda rows: settle_shapes(graph_def, inputs, captures, rows),
        loss_name=objective.loss_name if objective else "",
    )


def _pruned(graph_def: Any, roots: Sequence[str], needed: Sequence[str]) -> Any:
    """The graph without what nothing needs; loop variables that serve only themselves need nothing."""
    graph_def = prune(graph_def, roots)
    pass_on_idle_variables(graph_def, needed)
    return prune(graph_def, roots)


def _results(kind: StepKind, outputs: Mapping[str, Any], objective: TrainingObjective | None) -> tuple[str, ...]:
    """What the caller of the step gets: outputs only where a metric looks at them."""
    with_outputs = objective is None or objective.has_metrics
    return tuple(key for key in RESULTS[kind] if key in outputs and (key != "y_pred" or with_outputs))


def _rewritten(
    trace: Trace, kind: StepKind, phases: dict[str, Phase], order: dict[str, float], names: Mapping[str, str]
) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """The traced graph without what would override or hinder a placement, the partner of each colocated op, and the
    traced op behind each node. `phases` and `order` get the nodes that were added."""
    graph_def = trace.graph.as_graph_def()
    call_functions(graph_def)
    remove_colocations(graph_def)
    differentiates = _differentiates(trace, phases)
    # Looked up once: TensorFlow's Python is slow at finding an operation and its outputs.
    traced = {op.name: op for op in trace.graph.get_operations()}
    steps = sum_in_steps(graph_def, differentiates, trace.layer_of, order, kept=_makers_of_gradients(trace))
    _adopt_added(steps, phases, differentiates, trace.layer_of, traced)
    differentiates |= partners_of_sums(graph_def.node, differentiates, order)
    bypass_identity_n(graph_def, (name for name, phase in phases.items() if phase is Phase.UPDATE))
    limit_trips_at_once(graph_def)
    shared = share_reads(graph_def, order, names)
    differentiates = {name: shared.get(target, target) for name, target in differentiates.items()}
    squares = write_out_powers(graph_def)
    _adopt_added(squares, phases, differentiates, trace.layer_of, traced)
    order |= {square: order[cube] - 0.5 for square, cube in squares.items()}
    graph_def.node.sort(key=lambda node: order[node.name])  # what was added is at the end
    return graph_def, differentiates, traced


def _adopt_added(added: Mapping[str, str], *known: dict[str, Any]) -> None:
    """Give added nodes what is known of the nodes that they are parts of."""
    for of_op in known:
        of_op |= {node: of_op[whole] for node, whole in added.items() if whole in of_op}


def _makers_of_gradients(trace: Trace) -> set[str]:
    """The ops that make what optimizers get."""
    gradients = [gradient for update in trace.updates for gradient in update.gradients]
    return {producer(name) for name in tf.nest.flatten([*map(_tensor_names, gradients)]) if name is not None}


def _differentiates(trace: Trace, phases: Mapping[str, Phase]) -> dict[str, str]:
    """The op that each op of a gradient differentiates. What tapes made by themselves, such as sums of gradients, goes
    with a reader, or else with an input."""
    found = dict(trace.differentiates)
    ops = [op for op in trace.graph.get_operations() if phases[op.name] is Phase.BACKWARD and op.name not in found]
    for op in reversed(ops):
        readers = (reader.name for tensor in op.outputs for reader in tensor.consumers())
        _adopt(op.name, (name for name in readers if phases[name] is Phase.BACKWARD), found)
    for op in ops:
        _adopt(op.name, (tensor.op.name for tensor in op.inputs), found)
    return found


def _adopt(name: str, neighbours: Iterable[str], known: dict[str, str]) -> None:
    if name not in known and (partners := [known[neighbour] for neighbour in neighbours if neighbour in known]):
        known[name] = partners[0]


def _side_effects(trace: Trace, graph_def: Any) -> tuple[str, ...]:
    """The ops that run for their side effects, not for their outputs."""
    library = {function.signature.name: function for function in graph_def.library.function}
    return tuple(
        op.name
        for op in trace.graph.control_outputs
        if op.op_def.is_stateful and op.type not in (READ, "Placeholder") and not only_reads(op.node_def, library)
    )


def _settled(
    graph_def: Any,
    inputs: Mapping[str, Any],
    captures: Mapping[str, Any],
    batch_size: int,
    needed: Sequence[str],
    roots: Sequence[str],
) -> tuple[Any, Reading]:
    """The graph with the shapes of the batch size, after idle sums were removed from loops."""
    settled = settle_shapes(graph_def, inputs, captures, batch_size)
    if any(settled.idle_sums.values()):
        drop_idle_sums(graph_def, settled.idle_sums)
        pass_on_idle_variables(graph_def, needed)
        graph_def = prune(graph_def, roots)
        settled = settle_shapes(graph_def, inputs, captures, batch_size)
    return graph_def, settled


def _lacks_summaries(trace: Trace) -> bool:
    """Whether the model writes summaries and no writer was in force: it then leaves a constant in their scope."""
    return not has_default_writer() and any(_SUMMARY.search(op.name) for op in trace.graph.get_operations())


_SUMMARY = re.compile(r"(^|/)write_summary(_\d+)?/Const$")


def _names_in(outputs: Mapping[str, Any], *keys: str) -> list[str]:
    return [name for key in keys for name in tf.nest.flatten(outputs.get(key)) if name is not None]


def _phases(trace: Trace) -> dict[str, Phase]:
    """Phase of each op: that of its span, else forward.

    What a forward op reads is forward too where it was made later: the gradient of a while loop adds accumulators to
    the loop it differentiates.
    """
    ops = trace.graph.get_operations()
    made = {op.name: index for index, op in enumerate(ops)}
    phases = dict.fromkeys(made, Phase.FORWARD)
    for start, end, phase in sorted(trace.spans, key=lambda span: span[0] - span[1]):  # inner spans last
        phases.update((op.name, phase) for op in ops[start:end])
    stack = [(op, False) for op in ops if phases[op.name] is Phase.FORWARD]
    while stack:
        op, is_late = stack.pop()
        for source in (tensor.op for tensor in op.inputs):
            if phases[source.name] is not Phase.FORWARD and (is_late or made[source.name] > made[op.name]):
                phases[source.name] = Phase.FORWARD
                stack.append((source, True))
    return phases


def _topological(graph_def: Any, order: Mapping[str, float]) -> list[Any]:
    """Nodes in order of creation, but each after its inputs."""
    nodes = sorted(graph_def.node, key=lambda node: order[node.name])
    return in_run_order(nodes, lambda node: map(producer, node.input))


def _captured_variables(
    trace: Trace, captures: Mapping[str, Any], model: keras.Model, objective: TrainingObjective | None
) -> dict[str, Any]:
    """Variable by the placeholder of its handle: Keras' own object where Keras owns it."""
    measured = objective.model if objective else model
    owned = [*model.variables, *measured.metrics_variables, *_optimizer_variables(trace)]
    for layer in model._flatten_layers():
        owned += [generator.state for generator in getattr(layer, "_seed_generators", [])]
    by_handle = {id(variable.handle): variable for variable in trace.graph.variables}
    by_handle |= {id(variable.value.handle): variable for variable in owned if hasattr(variable.value, "handle")}
    return {name: by_handle[id(external)] for name, external in captures.items() if id(external) in by_handle}


def _optimizer_variables(trace: Trace) -> list[Any]:
    return [variable for optimizer in _optimizers(trace) for variable in optimizer.variables]


def _optimizers(trace: Trace) -> tuple[Any, ...]:
    return tuple({id(update.optimizer): update.optimizer for update in trace.updates}.values())


def _unique_names(variables: Mapping[str, Any]) -> dict[str, str]:
    """A readable name per variable, by placeholder: its Keras path, numbered where two share it."""
    taken: dict[str, int] = {}
    chosen: dict[int, str] = {}
    for variable in variables.values():
        if id(variable) not in chosen:
            path = getattr(variable, "path", None) or variable.name.split(":")[0]
            count = taken[path] = taken.get(path, -1) + 1
            chosen[id(variable)] = f"{path}_{count}" if count else path
    return {placeholder: chosen[id(variable)] for placeholder, variable in variables.items()}


def _tensor_names(value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        parts = (value.values, value.indices, value.dense_shape)
        return tuple(part.name for part in parts if part is not None)
    return None if value is None else value.name


def _op_graph(
    trace: Trace,
    *,
    nodes: Iterable[Any],
    traced: Mapping[str, Any],
    phases: Mapping[str, Phase],
    differentiates: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    variables: Mapping[str, Any],
    names: Mapping[str, str],
    tables: Container[str],
) -> dict[str, Any]:
    """The `ops`, `tensors` and `variables` of the op graph."""
    nodes = [node for node in nodes if node.name not in variables]
    outputs = {
        node.name: tuple(f"{node.name}:{index}" for index in range(len(traced[node.name].outputs))) for node in nodes
    }
    stateful = {kind for kind, op in {op.type: op for op in traced.values()}.items() if op.op_def.is_stateful}
    scalars = {name for name, made in outputs.items() if made and not any(specs[t].shape for t in made)}
    raw = [_raw_op(node, phases, names, differentiates, scalars) for node in nodes]
    parameters = {id(variable): name for name, variable in _by_name(variables, names).items()}
    trained = {parameters[id(v)]: v for v in trace.trainable if id(v) in parameters}
    gradient_of = _gradient_of(trace, parameters)
    slots = [parameters[id(variable)] for variable in _optimizer_variables(trace) if id(variable) in parameters]
    parameter_of = parameter_of_slots(raw, gradient_of, trained, slots)
    owner = parameter_of | {name: name for name in trained}
    groups = colocation_groups(raw, gradient_of, owner)
    layer_of_variable = _layer_of_variables(raw, trace.layer_of)
    layer_of_op = _layer_of_ops(raw, trace.layer_of, layer_of_variable, groups)
    tensors = [Tensor(name=name, producer=node.name, spec=specs[name]) for node in nodes for name in outputs[node.name]]
    live = {op.name for op in raw}
    ops = [
        Op(
            name=op.name,
            type=op.type,
            layer=layer_of_op.get(op.name, ""),
            phase=op.phase,
            colocation_group=groups.get(op.name, ""),
            inputs=op.inputs,
            outputs=outputs[op.name],
            control_inputs=tuple(
                dict.fromkeys(producer(r) for r in node.input if r.startswith("^") and producer(r) not in variables)
            ),
            variables=op.variables,
            attributes=readable_attributes(node),
            host_only=is_host_only(node),
            differentiates=op.differentiates if op.differentiates in live else "",
            stateful=op.type in stateful,
            takes_table=any(producer(reference) in tables for reference in node.input),
        )
        for op, node in zip(raw, nodes, strict=True)
    ]
    described = {
        name: Variable(
            name=name,
            spec=TensorSpec(shape=tuple(variable.shape), dtype=tf.as_dtype(variable.dtype).name),
            kind=_kind(name, trained, parameter_of),
            parameter=parameter_of.get(name, ""),
            layer=layer_of_variable.get(parameter_of.get(name, name), ""),
        )
        for name, variable in _by_name(variables, names).items()
    }
    return {"ops": tuple(ops), "tensors": tuple(tensors), "variables": tuple(described.values())}


def _kind(name: str, trained: Container[str], parameter_of: Container[str]) -> VariableKind:
    if name in trained:
        return VariableKind.PARAMETER
    return VariableKind.SLOT if name in parameter_of else VariableKind.STATE


def _gradient_of(trace: Trace, parameters: Mapping[int, str]) -> dict[str, frozenset[str]]:
    """The parameters that each gradient tensor belongs to."""
    gradient_of: dict[str, frozenset[str]] = {}
    for update in trace.updates:
        for variable, gradient in zip(update.variables, update.gradients, strict=True):
            if id(variable) in parameters:
                for tensor in tf.nest.flatten(_tensor_names(gradient)):
                    if tensor is not None:
                        gradient_of[tensor] = gradient_of.get(tensor, frozenset()) | {parameters[id(variable)]}
    return gradient_of


def _by_name(variables: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[placeholder]: variable for placeholder, variable in variables.items()}


def _raw_op(
    node: Any,
    phases: Mapping[str, Phase],
    names: Mapping[str, str],
    differentiates: Mapping[str, str],
    scalars: Container[str],
) -> RawOp:
    data = [(reference, producer(reference)) for reference in node.input if not reference.startswith("^")]
    return RawOp(
        name=node.name,
        type=node.op,
        phase=phases[node.name],
        inputs=tuple(tensor_name(reference) for reference, name in data if name not in names),
        variables=tuple(dict.fromkeys(names[name] for _, name in data if name in names)),
        differentiates=differentiates.get(node.name, "") if phases[node.name] is Phase.BACKWARD else "",
        is_scalar=node.name in scalars,
    )


def _layer_of_variables(ops: Iterable[RawOp], layer_of: Mapping[str, str]) -> dict[str, str]:
    layers: dict[str, str] = {}
    for op in ops:
        if op.name in layer_of:
            for variable in op.variables:
                layers.setdefault(variable, layer_of[op.name])
    return layers


def _layer_of_ops(
    ops: Iterable[RawOp],
    layer_of: Mapping[str, str],
    layer_of_variable: Mapping[str, str],
    groups: Mapping[str, str],
) -> dict[str, str]:
    """Layer by op: of a forward op, the layer whose call made it; of a backward op, that of the op it differentiates;
    of an update op, that of the parameter it updates."""
    layer_of_op = dict(layer_of)
    group_layer: dict[str, str] = {}
    for op in ops:
        if op.name not in layer_of_op and op.differentiates in layer_of_op:
            layer_of_op[op.name] = layer_of_op[op.differentiates]
        elif op.name not in layer_of_op:
            layers = [layer_of_variable[v] for v in op.variables if v in layer_of_variable]
            if layers:
                layer_of_op[op.name] = layers[0]
        if op.name in layer_of_op and op.name in groups and op.variables:
            group_layer.setdefault(groups[op.name], layer_of_op[op.name])
    for op in ops:
        if op.phase is Phase.UPDATE and op.name not in layer_of_op and groups.get(op.name) in group_layer:
            layer_of_op[op.name] = group_layer[groups[op.name]]
    return layer_of_op
