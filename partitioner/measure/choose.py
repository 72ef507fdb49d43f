"""Choose the costs of a step: of the catalogue, of a file, or measured now on the devices present."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from cost_models.hardware import Link
from cost_models.measured import MeasuredCosts, MeasuredDevice, MeasuredLink
from cost_models.topology import Topology
from partitioner.capture.lower.batching import BatchSizes
from partitioner.deadline import MEASURING_SECONDS
from partitioner.deferred_variables import is_deferred
from partitioner.emit.graph.calls import ops_of_calls
from partitioner.emit.graph.function import emit_function
from partitioner.emit.graph.rewriting import op_by_op
from partitioner.emit.graph.variables import copied, held_variable
from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName, share_memory
from partitioner.ir.execution import Execution
from partitioner.ir.step import RESULTS, CapturedStep
from partitioner.measure.call_times import time_calls
from partitioner.measure.gradient_sums import adding, gradient_sums
from partitioner.measure.imported_costs import costs_notes, refuse_other_devices
from partitioner.measure.link_times import time_link
from partitioner.measure.measure import measure_device
from partitioner.measure.store import cache_costs, cached_costs, processor_title, read_costs, settings
from partitioner.measure.timed_steps import Measurable
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.spelling import argument
from partitioner.verification.data import random_batches
from partitioner.verification.reference import restored

ANALYTIC, MEASURED = "analytic", "measured"

OnProgress = Callable[[str, float], object]


def costs_for(
    costs: str | Path | MeasuredCosts,
    step: CapturedStep,
    topology: Topology,
    titles: Mapping[str, str],
    sizes: Iterable[int],
    on_progress: OnProgress | None = None,
    *,
    compiled: Collection[str] = (),
) -> MeasuredCosts | None:
    """The measured costs to plan with; None to plan with the catalogue.

    Args:
        costs: `analytic`, `measured`, a file of measured costs, or its contents.
        step: The step to plan.
        topology: The topology to plan for.
        titles: Driver titles of the GPUs of this machine, by canonical name.
        sizes: Numbers of rows to measure the step on: of the batch, and of possible microbatches.
        on_progress: Called with the thing that is measured, and the fraction done.
        compiled: The devices whose programs XLA compiles.

    Raises:
        UsageError: The file is invalid or for other devices, none of the devices is here, or the step does not fit on a
            device.
    """
    if isinstance(costs, MeasuredCosts):
        return costs
    if costs == ANALYTIC:
        return None
    if costs != MEASURED:
        imported = read_costs(Path(costs))
        refuse_other_devices(str(costs), imported, topology)
        return imported
    here = [index for index, placed in enumerate(topology.devices) if _is_here(placed.name)]
    if not here:
        names = ", ".join(DeviceName.parse(placed.name).short for placed in topology.devices)
        raise UsageError(
            f"cannot measure on {names}: this machine has none of them",
            help=f"measure where they are, and give the costs.json written there: {argument('costs', 'costs.json')}",
        )
    report = on_progress or (lambda _text, _fraction: None)
    cached = cached_costs(settings(jit_compile=bool(compiled)))
    kinds: dict[tuple[str, str], int] = {}
    for index in here:
        kinds.setdefault(_kind(topology.devices[index].name, titles), index)
    devices = {(device.type, device.title): device for device in cached.devices}
    with restored([variable for variable in step.variables.values() if not is_deferred(held_variable(variable))]):
        for kind, index in kinds.items():
            execution = partial(_everything_on, step, compiled)
            devices[kind] = _measured_device(kind, index, step, topology, sizes, devices.get(kind), report, execution)
    links = {link.between: link for link in cached.links}
    for link in _measured_links(here, topology, report):
        links[link.between] = link
    measured = replace(cached, devices=tuple(devices.values()), links=tuple(links.values()))
    cache_costs(measured)
    return measured


def measured_devices(
    costs: MeasuredCosts | None, topology: Topology, titles: Mapping[str, str]
) -> dict[int, MeasuredDevice]:
    """The measured device for each device of a topology, by its index."""
    if costs is None:
        return {}
    by_index = {}
    for index, placed in enumerate(topology.devices):
        kind, title = _kind(placed.name, titles)
        of_type = [device for device in costs.devices if device.type == kind]
        if of_type:
            hardware = placed.device.name
            by_index[index] = min(of_type, key=lambda device: (device.hardware != hardware, device.title != title))
    return by_index


def notes_on_costs(
    costs: str | Path | MeasuredCosts,
    imported: MeasuredCosts | None,
    measured: Mapping[int, MeasuredDevice],
    topology: Topology,
    titles: Mapping[str, str],
    *,
    jit_compile: bool = False,
) -> list[str]:
    """Notes in a plan about costs from a file."""
    if imported is None or costs == MEASURED or isinstance(costs, MeasuredCosts):
        return []
    here = {index: _kind(placed.name, titles)[1] for index, placed in enumerate(topology.devices)}
    return costs_notes(str(costs), imported, measured, here, settings(jit_compile=jit_compile))


def with_measured_links(topology: Topology, costs: MeasuredCosts | None) -> Topology:
    """The topology with the measured latency and bandwidth between devices of the same host."""
    by_types = {link.between: link for link in costs.links} if costs else {}
    if not by_types:
        return topology
    names = [DeviceName.parse(placed.name) for placed in topology.devices]

    def link(a: int, b: int, before: Link) -> Link:
        same_host = (names[a].job, names[a].task) == (names[b].job, names[b].task)
        measured = by_types.get((names[a].type, names[b].type)) if same_host and a != b else None
        return before if measured is None else measured.as_link()

    return replace(
        topology,
        links=tuple(tuple(link(a, b, before) for b, before in enumerate(row)) for a, row in enumerate(topology.links)),
    )


def _measured_device(
    kind: tuple[str, str],
    index: int,
    step: CapturedStep,
    topology: Topology,
    sizes: Iterable[int],
    cached: MeasuredDevice | None,
    on_progress: OnProgress,
    execution: Callable[[str], Execution],
) -> MeasuredDevice:
    """The costs of a kind of device, measured where the cached costs lack ops of the step."""
    placed = topology.devices[index]
    before = cached or MeasuredDevice(type=kind[0], title=kind[1], hardware=placed.device.name, overhead_seconds=0.0)
    graph = BatchSizes(step)
    graphs = {count: cost_ops(graph(count), topology) for count in dict.fromkeys(sizes)}
    # Only several microbatches have gradients to add.
    sums = cost_ops(gradient_sums(step), topology) if len(graphs) > 1 else None
    is_known = all(before.has(spec) for costed in filter(None, [*graphs.values(), sums]) for spec in costed.graph.specs)
    neighbours = _sharing_memory(index, topology)
    if before.call is None and len(graphs) > 1 and kind[0] == "CPU":  # the host of a GPU calls ahead of it
        before = replace(before, call=time_calls([placed.name, *neighbours[:1]]))
    if is_known and before.crowd == 1 + len(neighbours):
        return before
    whole = graphs[step.graph.batch_size]
    need = simulate(whole, dict.fromkeys(whole.graph.op, index)).peak[placed.name].total_bytes
    if need * (1 + len(neighbours)) > _half_of_memory():
        neighbours = []
    if is_known and not neighbours:
        return before
    if need > placed.memory_bytes:
        short = DeviceName.parse(placed.name).short
        raise UsageError(
            f"cannot measure: the model does not fit on {short} alone",
            notes=[f"needs {need:,} bytes at a batch of {step.graph.batch_size}, {short} has {placed.memory_bytes:,}"],
            help=f"measure with a smaller {argument('batch_size')}; the measured costs serve larger batches too",
        )
    # Deferred variables stay so.
    function = _function(_with_own_variables(step, placed.name, is_deferred), execution(placed.name))
    others = [_function(_with_own_variables(step, name), execution(name)) for name in neighbours]
    calls = ops_of_calls(function.graph.as_graph_def())
    measurable = [
        Measurable(
            costed=costed,
            run=_runner(step, function, count),
            others=[_runner(step, other, count) for other in others],
            calls=calls,
        )
        for count, costed in graphs.items()
    ]
    if sums is not None and sums.graph.ops:
        run, *beside = (adding(sums.graph, name) for name in (placed.name, *neighbours))
        measurable.append(Measurable(costed=sums, run=run, others=beside, is_of_model=False))
    return measure_device(
        measurable,
        before,
        budget_seconds=MEASURING_SECONDS,
        on_progress=lambda done: on_progress(f"measuring ops on {DeviceName.parse(placed.name).short}", done),
    )


def _sharing_memory(index: int, topology: Topology) -> list[str]:
    """The other devices of the plan that share the memory of this device, and so its bandwidth."""
    name = topology.devices[index].name
    return [other.name for other in topology.devices if other.name != name and share_memory([name, other.name])]


def _half_of_memory() -> int:
    """Bytes of the machine's memory that measuring may fill; 0 where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 0


def _with_own_variables(step: CapturedStep, device: str, which: Callable[[Any], bool] = lambda _: True) -> CapturedStep:
    """The step with copies of its variables, or of some, on a device."""
    held = {name: held_variable(variable) for name, variable in step.variables.items()}
    copies = {name: copied(variable, device) for name, variable in held.items() if which(variable)}
    return replace(step, variables={**step.variables, **copies})


def _everything_on(step: CapturedStep, compiled: Collection[str], device: str) -> Execution:
    """All of a step on one device."""
    return Execution(
        placement=dict.fromkeys(step.graph.op, device),
        stage_devices=(device,),
        compiled=frozenset({device} & set(compiled)),
    )


def _function(step: CapturedStep, execution: Execution) -> Any:
    # A GPU's kernels are recorded each, however short; on a CPU only a call of a loop is timed whole.
    loops_called = all(DeviceName.parse(name).type == "CPU" for name in execution.stage_devices)
    return emit_function(step, execution, results=RESULTS[step.kind], loops_called=loops_called)


def _runner(step: CapturedStep, function: Any, rows: int) -> Callable[[], None]:
    """Runs a function of the step on a number of random rows, to its end."""
    try:
        (arguments,) = random_batches(step.specs, rows, 1, seed=0)
    except ValueError as error:
        raise UsageError(f"cannot measure: {error}", help=argument("costs", "analytic")) from error

    def run() -> None:
        with op_by_op():
            function(*arguments)
        tf.test.experimental.sync_devices()

    return run


def _measured_links(here: Sequence[int], topology: Topology, on_progress: OnProgress) -> list[MeasuredLink]:
    """Measure a link for each pair of types of the devices present."""
    pairs: dict[tuple[str, str], tuple[str, str]] = {}
    for a in here:
        for b in here:
            if a != b:
                source, target = topology.devices[a].name, topology.devices[b].name
                types = DeviceName.parse(source).type, DeviceName.parse(target).type
                pairs.setdefault(types, (source, target))
    links = []
    for number, (types, (source, target)) in enumerate(pairs.items()):
        on_progress("measuring links", number / len(pairs))
        latency, bandwidth = time_link(source, target)
        links.append(MeasuredLink(between=types, latency_seconds=latency, bandwidth_bytes_per_second=bandwidth))
    return links


def _kind(name: str, titles: Mapping[str, str]) -> tuple[str, str]:
    """Type and title of a device."""
    device = DeviceName.parse(name)
    return device.type, processor_title() if device.type == "CPU" else titles.get(name, "")


def _is_here(name: str) -> bool:
    device = DeviceName.parse(name)
    return device.is_local and device.index < len(tf.config.list_logical_devices(device.type))
