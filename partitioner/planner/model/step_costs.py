"""Costs of the ops of a step, for every number of rows that is planned with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cost_models.measured import MeasuredDevice
from cost_models.scratch import Kernels
from cost_models.topology import Topology
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.model.costs import GraphCosts


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """A step by number of rows, and the devices that it may run on.

    Attributes:
        graph_of: The op graph of a number of rows: of the batch, or of a part of it. It is asked once for each.
        machines: The devices.
        measured: Measured costs of ops, by index of the device.
        kernels: The kernels that TensorFlow chooses for ops.
        compiled: Names of the ops that XLA compiles where they run on a GPU.
    """

    graph_of: Callable[[int], OpGraph]
    machines: Topology
    measured: Mapping[int, MeasuredDevice]
    kernels: Kernels
    compiled: frozenset[str] = frozenset()

    def on(self, rows: int, devices: Sequence[int], sums: tuple[str, ...] = ()) -> CostedGraph:
        """The step for a number of rows, with the costs of its ops on some of the devices; `sums` as in the result."""
        measured = {place: self.measured[index] for place, index in enumerate(devices) if index in self.measured}
        if rows not in self._costs:
            like = next(iter(self._costs.values()), None)
            self._costs[rows] = GraphCosts(self.graph_of(rows), self.compiled, like)
        return self._costs[rows].on(self.machines.subset(devices), measured, self.kernels, sums)

    @cached_property
    def _costs(self) -> dict[int, GraphCosts]:
        return {}
