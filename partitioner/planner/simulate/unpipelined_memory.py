"""Memory of a step as one graph: op by op on each device, in the order in which TensorFlow runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cost_models.memory import allocated_bytes
from partitioner.ir.buffer_walk import Walk, walk
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import Op, VariableKind
from partitioner.ir.schedule import MemoryUse, Schedule
from partitioner.planner.model.buffers import Buffers, buffers_of
from partitioner.planner.simulate.memory_use import largest_tensors, memory_use
from partitioner.stages.run_ahead import order_among


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer as an op: of the receiving device, where it allocates a buffer, or of the sending device."""

    tensor: str
    target: int
    is_received: bool

    @property
    def name(self) -> str:
        """A name that no op has: names of ops have no blanks."""
        return f"{self.tensor} to {self.target}"

    @property
    def type(self) -> str:
        """Type of the TensorFlow op."""
        return "_Recv" if self.is_received else "_Send"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensor that is sent."""
        return () if self.is_received else (self.tensor,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensor that is received."""
        return (self.tensor,) if self.is_received else ()


Work = Op | Transfer
"""An op or a transfer on a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A simulated step without its memory.

    Attributes:
        schedule: When ops and transfers run.
        costed: The simulated graph.
        placement: Index of a device for every op.
        delayed: Gradients that wait for others.
        began: Work of each device and when it began, in the order in which it ended.
    """

    schedule: Schedule
    costed: CostedGraph
    placement: Mapping[str, int]
    delayed: Mapping[str, Sequence[str]]
    began: Sequence[Sequence[tuple[float, Work]]]


def with_memory(step: TimedStep) -> Schedule:
    """A simulated step with the memory of its devices.

    A GPU runs ops in the simulated order; a CPU runs last what it queued first. Of the orders that are possible on a
    CPU, the order with the highest peak counts. The caller holds the batch until the step ends.
    """
    buffers = buffers_of(step.costed)
    layout = DeviceBuffers(step.costed, buffers, step.placement)
    on_cpu = []
    if "CPU" in layout.kinds:
        held = order_among(step.placement.values())
        on_cpu = [layout.parts(order) for order in buffers.orders_on_cpu(held, step.delayed)]
    walks = []
    for device, kind in enumerate(layout.kinds):
        orders = [parts[device] for parts in on_cpu] if kind == "CPU" else [[what for _, what in step.began[device]]]
        walks.append(max((layout.walk(device, order) for order in orders), key=lambda walked: walked.most_bytes))
    # An order that was not simulated has no times of its own.
    moments = [sorted(seconds for seconds, _ in own) for own in step.began]
    uses = [layout.use(device, *walked) for device, walked in enumerate(zip(walks, moments, strict=True))]
    peaks, memory = (dict(zip(step.schedule.busy_seconds, figures, strict=True)) for figures in zip(*uses, strict=True))
    return replace(step.schedule, peak=peaks, memory=memory)


class DeviceBuffers:
    """Buffers and variables of all devices, by device index."""

    def __init__(self, costed: CostedGraph, buffers: Buffers, placement: Mapping[str, int]) -> None:
        self._graph, self._buffers, self._placement = costed.graph, buffers, placement
        self._inter_op_threads = costed.kernels.inter_op_threads
        self.kinds = [DeviceName.parse(placed.name).type for placed in costed.topology.devices]
        self._roots: list[dict[str, str | None]] = [{} for _ in self.kinds]
        for name in buffers.passes_on:
            device = self._maker(name)
            self._roots[device][name] = self._root(name, device)
        self._given: list[dict[str, int]] = [{} for _ in self.kinds]
        for name in costed.graph.inputs:
            device = self._maker(name)
            self._given[device][name] = buffers.sizes[self.kinds[device]][name]
        self._variables = [dict.fromkeys(VariableKind, 0) for _ in self.kinds]
        for variable in costed.graph.variables:
            user = buffers.home_op.get(variable.name)
            if user is not None:
                device = placement[user]
                self._variables[device][variable.kind] += allocated_bytes(variable.size_bytes, self.kinds[device])

    def _maker(self, name: str) -> int:
        """The device that makes a tensor."""
        return self._placement[self._graph.tensor[name].producer]

    def _root(self, name: str, device: int) -> str | None:
        """The tensor whose buffer `name` uses on `device`, as far as ops on that device pass the buffer on."""
        current: str | None = name
        while current is not None and current in self._buffers.passes_on and self._maker(current) == device:
            current = self._buffers.passes_on[current]
        return current

    def parts(self, order: Iterable[str]) -> list[list[Work]]:
        """The work of each device for an order of all ops; tensors of other devices arrive as soon as they are made."""
        work: list[list[Work]] = [[] for _ in self.kinds]
        for op in map(self._graph.op.__getitem__, order):
            device = self._placement[op.name]
            work[device].append(op)
            for name in op.outputs:
                for target in {self._placement[reader] for reader in self._graph.consumers[name]} - {device}:
                    work[target].append(Transfer(name, target, is_received=True))
        return work

    def walk(self, device: int, order: Sequence[Work]) -> Walk:
        """The buffers that a device holds while it does its work in that order."""
        return walk(
            {work.name: work for work in order},
            [work.name for work in order],
            given=self._given[device],
            kept=[name for name in self._graph.outputs if self._maker(name) == device],
            roots=self._roots[device],
            aliases={},
            size_bytes=self._buffers.sizes[self.kinds[device]].__getitem__,
            scratch_bytes=self._buffers.scratch[self.kinds[device]],
            overlapping=self.kinds[device] == "CPU" and self._inter_op_threads > 1,
        )

    def use(
        self, device: int, walked: Walk, moments: Sequence[float]
    ) -> tuple[MemoryUse, tuple[tuple[float, int], ...]]:
        """Memory of a device at its peak, and over time.

        Args:
            device: Its index.
            walked: The buffers that it holds.
            moments: When each piece of its work begins, ascending.
        """
        variables, batch = self._variables[device], self._given[device]
        alive = [*walked.alive(), *batch.items()]
        gradient_bytes = sum(size for tensor, size in alive if tensor in self._buffers.gradients)
        peak = memory_use(
            variables,
            walked.most_bytes + sum(batch.values()) - gradient_bytes,
            gradient_bytes,
            seconds=moments[walked.changes[walked.most_after - 1][0]] if walked.changes else 0.0,
            largest=largest_tensors(alive),
        )
        held = accumulate(
            (size for _, _, size in walked.changes), initial=sum(variables.values()) + sum(batch.values())
        )
        return peak, tuple(zip([0.0, *(moments[index] for index, _, _ in walked.changes)], held, strict=True))
