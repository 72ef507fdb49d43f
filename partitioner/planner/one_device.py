"""Memory of a step that runs as one graph on one device: op by op, in the order in which TensorFlow runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from cost_models.memory import allocated_bytes
from partitioner.ir.buffer_walk import walk
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import VariableKind
from partitioner.ir.run_order import run_orders
from partitioner.ir.schedule import Schedule
from partitioner.planner.buffers import Buffers
from partitioner.planner.kernel_memory import scratch_of_ops, sizes_of_tensors
from partitioner.planner.memory_use import largest_tensors, memory_use
from partitioner.stages.run_ahead import run_ahead_limits


def with_memory_of_one(schedule: Schedule, costed: CostedGraph, buffers: Buffers, device: int) -> Schedule:
    """A simulated step with the memory of the device that all its ops run on.

    Which op runs next depends on the device: a CPU takes up last what it queued first. Of the orders that it may run
    the ops in, the one that takes most counts. Who calls the step holds the batch until it ends.
    """
    graph = costed.graph
    name = costed.topology.devices[device].name
    kind = DeviceName.parse(name).type
    sizes = sizes_of_tensors(costed, kind, workspaces=graph.training)
    scratch = scratch_of_ops(costed, kind)
    roots = {tensor.name: buffers.root(tensor.name) for tensor in graph.tensors if tensor.name in buffers.passes_on}
    worst, order = max(
        (
            (
                walk(
                    graph.op,
                    order,
                    given=frozenset(graph.inputs),
                    kept=graph.outputs,
                    roots=roots,
                    aliases={},
                    size_bytes=sizes.__getitem__,
                    scratch_bytes=scratch,
                ),
                order,
            )
            for order in _orders(costed, is_cpu=kind == "CPU")
        ),
        key=lambda one: one[0].most_bytes,
    )
    seconds = dict(zip((op.name for op in graph.ops), (row[device] for row in costed.seconds), strict=True))
    starts = list(accumulate((seconds[one] for one in order), initial=0.0))
    variables = dict.fromkeys(VariableKind, 0)
    for variable in graph.variables:
        if variable.name in buffers.home_op:
            variables[variable.kind] += allocated_bytes(variable.size_bytes, kind)
    batch = {given: sizes[given] for given in graph.inputs}
    alive = [*worst.alive(), *batch.items()]
    gradient_bytes = sum(size for tensor, size in alive if tensor in buffers.gradients)
    fixed = sum(variables.values()) + sum(batch.values())
    use = memory_use(
        variables,
        worst.most_bytes + sum(batch.values()) - gradient_bytes,
        gradient_bytes,
        seconds=starts[worst.changes[worst.most_after - 1][0]] if worst.changes else 0.0,
        largest=largest_tensors(alive),
    )
    held = accumulate((size for _, _, size in worst.changes), initial=fixed)
    moments = [0.0, *(starts[index] for index, _, _ in worst.changes)]
    return replace(
        schedule,
        peak=schedule.peak | {name: use},
        memory=schedule.memory | {name: tuple(zip(moments, held, strict=True))},
    )


def _orders(costed: CostedGraph, *, is_cpu: bool) -> Iterator[list[str]]:
    graph = costed.graph
    needs = {
        op.name: dict.fromkeys([*(graph.tensor[read].producer for read in op.inputs), *op.control_inputs])
        for op in graph.ops
    }
    if is_cpu:
        for name, sources in run_ahead_limits(graph, [op.name for op in graph.ops]).items():
            needs[name].update(dict.fromkeys(sources))
    working = [op.name for op, cost in zip(graph.ops, costed.costs, strict=True) if cost.flops or cost.moved_bytes]
    return run_orders([op.name for op in graph.ops], needs, frozenset(working) if is_cpu else frozenset())
