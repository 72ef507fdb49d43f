"""Memory of a step in one piece: op by op on each device, in the order in which TensorFlow runs them there."""

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
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.simulate.memory_use import largest_tensors, memory_use
from partitioner.stages.run_ahead import order_among


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor on its way, as an op: of the device that gets it, which takes a buffer, or of the one that sends it."""

    tensor: str
    target: int
    is_received: bool

    @property
    def name(self) -> str:
        """Unlike that of any op: theirs have no blanks."""
        return f"{self.tensor} to {self.target}"

    @property
    def type(self) -> str:
        """Name of TensorFlow's op for it."""
        return "_Recv" if self.is_received else "_Send"

    @property
    def inputs(self) -> tuple[str, ...]:
        """What is sent."""
        return () if self.is_received else (self.tensor,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is received."""
        return (self.tensor,) if self.is_received else ()


Work = Op | Transfer
"""What a device does."""


def with_memory(
    schedule: Schedule,
    costed: CostedGraph,
    buffers: Buffers,
    placement: Mapping[str, int],
    began: Sequence[Sequence[tuple[float, Work]]],
) -> Schedule:
    """A simulated step with the memory of its devices.

    Which op runs next depends on the device: a GPU runs them as simulated, a CPU takes up last what it queued first. Of
    the orders that it may run the ops in, the one that takes most counts. Who calls the step holds the batch until it
    ends.

    Args:
        schedule: Without memory.
        costed: What was simulated.
        buffers: Of `costed`.
        placement: Index of a device for every op.
        began: What each device did and in how many seconds it began, in the order in which it ended.
    """
    layout = _Layout(costed, buffers, placement)
    on_cpu = []
    if "CPU" in layout.kinds:
        held = order_among(placement.values())
        on_cpu = [layout.parts(order) for order in buffers.orders_on_cpu(held)]
    walks = []
    for device, kind in enumerate(layout.kinds):
        orders = [parts[device] for parts in on_cpu] if kind == "CPU" else [[what for _, what in began[device]]]
        walks.append(max((layout.walk(device, order) for order in orders), key=lambda one: one.most_bytes))
    # An order that was not simulated has no times of its own.
    moments = [sorted(seconds for seconds, _ in own) for own in began]
    uses = [layout.use(*found) for found in zip(range(len(walks)), walks, moments, strict=True)]
    peaks, memory = (dict(zip(schedule.busy_seconds, one, strict=True)) for one in zip(*uses, strict=True))
    return replace(schedule, peak=peaks, memory=memory)


class _Layout:
    """What the devices run and hold; everything is by index of a device."""

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
        """The tensor whose buffer `name` uses on `device`: followed as far as the ops there pass it on."""
        current: str | None = name
        while current is not None and current in self._buffers.passes_on and self._maker(current) == device:
            current = self._buffers.passes_on[current]
        return current

    def parts(self, order: Iterable[str]) -> list[list[Work]]:
        """What each device runs of an order of all ops; what it reads of others comes as soon as it is made."""
        found: list[list[Work]] = [[] for _ in self.kinds]
        for op in map(self._graph.op.__getitem__, order):
            device = self._placement[op.name]
            found[device].append(op)
            for name in op.outputs:
                for target in {self._placement[reader] for reader in self._graph.consumers[name]} - {device}:
                    found[target].append(Transfer(name, target, is_received=True))
        return found

    def walk(self, device: int, order: Sequence[Work]) -> Walk:
        """The buffers that a device holds while it does that in that order."""
        return walk(
            {one.name: one for one in order},
            [one.name for one in order],
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
        """A device at its peak, and over time.

        Args:
            device: Its index.
            walked: The buffers that it holds.
            moments: When the first, the second, ... of what it runs begins.
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
