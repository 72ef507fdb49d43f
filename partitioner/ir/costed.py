"""The op graph with the costs of ops and the hardware it may run on."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from operator import add

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cost_models.calls import CallCost
from cost_models.catalogue import link_named
from cost_models.communication import transfer_seconds
from cost_models.gpu_constants import GPU
from cost_models.hardware import Device
from cost_models.scratch import ONEDNN, Kernels
from cost_models.specs import OpCost
from cost_models.topology import Topology
from partitioner.ir.by_identity import ByIdentity
from partitioner.ir.devices import DeviceName, share_memory
from partitioner.ir.fusion import Fusion
from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.ir.op_seconds import seconds_of_ops

HOST_LINK = "pcie4"
"""What joins a GPU and its host, where an op runs on the host for it."""
_ALWAYS_ON_HOST = ("int32", "resource", "string", "variant")


@dataclass(frozen=True, kw_only=True)
class CostedGraph:
    """An op graph with one cost per op (same order) and the topology it is planned for.

    Attributes:
        graph: The graph.
        costs: FLOPs and bytes of each op.
        topology: The devices and links it is planned for.
        measured: Seconds of each op by index of a device of the topology, as measured on such a device, or inferred
            from ops that were. Devices that it lacks have their rooflines.
        crowded: The same while all devices of the topology are busy, for devices with such measurements.
        measured_ops: Names of the ops whose very shapes were measured.
        measured_calls: What calls of stage programs take by index of a device, where measured.
        kernels: The kernels that TensorFlow chooses for its ops.
        sharing: Number of replicas that each device of the topology works for; empty where each works for one replica.
            Forwards and backwards take that many times as long there; updates run once for all replicas.
        fusion: The groups of ops that XLA makes kernels of; None where the step is not compiled.
        sums: Tensors that are added to running totals when they are made: gradients of one microbatch of several. The
            seconds of the ops that make them include it, measured ones too.
    """

    graph: OpGraph
    costs: tuple[OpCost, ...]
    topology: Topology
    measured: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    crowded: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    measured_ops: frozenset[str] = frozenset()
    measured_calls: Mapping[int, CallCost] = field(default_factory=dict)
    kernels: Kernels = ONEDNN
    sharing: tuple[int, ...] = ()
    fusion: Fusion | None = None
    sums: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for numbers in (self.costs, *self.measured.values(), *self.crowded.values()):
            if len(numbers) != len(self.graph.ops):
                raise ValueError(f"{len(numbers)} costs for {len(self.graph.ops)} ops")

    @cached_property
    def seconds(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of each op (row, graph order) on each device of the topology (column)."""
        return tuple(zip(*self.columns, strict=True))

    @cached_property
    def columns(self) -> tuple[tuple[float, ...], ...]:
        """The same by device; `alike` devices share one column."""
        made = {device: self._column(device) for device in dict.fromkeys(self.alike)}
        return tuple(made[device] for device in self.alike)

    @cached_property
    def fastest_seconds(self) -> tuple[float, ...]:
        """Seconds of each op on the device where it takes the fewest."""
        return tuple(map(min, zip(*(self.columns[device] for device in set(self.alike)), strict=True)))

    @cached_property
    def seconds_array(self) -> NDArray[np.float64]:
        """`seconds` as an array `(ops, devices)`; not to be written to."""
        kinds = {device: np.array(self.columns[device]) for device in set(self.alike)}
        return np.stack([kinds[device] for device in self.alike], axis=1)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each device of the topology, the first on which every op takes as long as on it."""
        kinds = [
            (placed.device, DeviceName.parse(placed.name).type, self.num_sharing(index), id(self.measured.get(index)))
            for index, placed in enumerate(self.topology.devices)
        ]
        return tuple(map(kinds.index, kinds))

    def _column(self, device: int) -> tuple[float, ...]:
        placed, count = self.topology.devices[device], self.num_sharing(device)
        column = self.measured.get(device) or self._modelled(placed.device)
        copied = device not in self.measured and DeviceName.parse(placed.name).type == "GPU"
        if copied and any(self._host_copy_seconds):
            column = tuple(map(add, column, self._host_copy_seconds))
        if count == 1:
            return column
        return tuple(
            seconds if op.phase is Phase.UPDATE else count * seconds
            for op, seconds in zip(self.graph.ops, column, strict=True)
        )

    def _modelled(self, device: Device) -> tuple[float, ...]:
        """Seconds on a device that nobody measured, worked out once for all topologies the graph is planned for."""
        known: ByIdentity = vars(self.graph).setdefault("modelled", ByIdentity())
        given = self.graph, self.costs, device, self.fusion
        return known(seconds_of_ops, *given, kernels=self.kernels, sums=self.sums)

    @cached_property
    def dispatch_seconds(self) -> tuple[float, ...]:
        """For each device, what its host takes to start an op; 0 where that is in the seconds of ops, or not known.

        A compiled step starts without the host, and so do measured ops, whose times have it.
        """
        return tuple(
            GPU.dispatch_seconds
            if placed.device.multiprocessors and self.fusion is None and index not in self.measured
            else 0.0
            for index, placed in enumerate(self.topology.devices)
        )

    @cached_property
    def _host_copy_seconds(self) -> tuple[float, ...]:
        """Seconds, for each op that no GPU can run, to copy its inputs to the host and its outputs back.

        Strings, handles and int32 lie on the host for ops of a GPU too.
        """
        graph, link = self.graph, link_named(HOST_LINK)
        hosted = {op.name for op in graph.ops if op.host_only}
        if not hosted:
            return (0.0,) * len(graph.ops)

        def seconds(op: Op) -> float:
            if not op.host_only:
                return 0.0
            inputs = [name for name in op.inputs if graph.tensor[name].producer not in hosted]
            outputs = [name for name in op.outputs if any(reader not in hosted for reader in graph.consumers[name])]
            copied = [t for name in (*inputs, *outputs) if (t := graph.tensor[name]).spec.dtype not in _ALWAYS_ON_HOST]
            return sum(transfer_seconds(tensor.size_bytes, link) for tensor in copied)

        return tuple(map(seconds, graph.ops))

    def call(self, device: int) -> CallCost:
        """What a call of a stage program takes on a device, besides its ops."""
        return self.measured_calls.get(device, CallCost())

    @cached_property
    def least_call_seconds(self) -> float:
        """Seconds of any call on any device at the least, whatever it is given."""
        return min(self.call(device).seconds for device in range(len(self.topology.devices)))

    def num_sharing(self, device: int) -> int:
        """Number of replicas that a device works for."""
        return self.sharing[device] if self.sharing else 1

    @cached_property
    def contended(self) -> CostedGraph:
        """The graph with seconds of ops while all devices of the topology are busy, where measured."""
        return replace(self, measured={**self.measured, **self.crowded}, crowded={}) if self.crowded else self

    def seconds_beside(self, op: int, device: int, busy: Container[int]) -> float:
        """Seconds of an op that starts on a device while some devices are busy.

        Each of those that share its memory slows it down by an equal part of what all of them do together, if measured.
        """
        alone, neighbours = self.seconds[op][device], self._crowd.get(device)
        if not neighbours:
            return alone
        share = sum(other in busy for other in neighbours) / len(neighbours)
        return alone + share * (self.contended.seconds[op][device] - alone)

    @cached_property
    def _crowd(self) -> Mapping[int, tuple[int, ...]]:
        """For each device that was measured beside others, those of the topology that share its memory."""
        names = [placed.name for placed in self.topology.devices]
        return {
            device: tuple(
                other for other, name in enumerate(names) if other != device and share_memory([names[device], name])
            )
            for device in self.crowded
        }

    @property
    def measured_share(self) -> float:
        """Share of the seconds on measured devices that was measured on ops of the same shapes."""
        are_measured = [op.name in self.measured_ops for op in self.graph.ops]
        whole = sum(map(sum, self.measured.values()))
        exact = sum(second for row in self.measured.values() for second in compress(row, are_measured))
        return exact / whole if whole else 0.0

    @cached_property
    def uncosted_ops(self) -> dict[str, int]:
        """How often a step runs each op type without a cost formula, in loops and calls too."""
        return {op_type: count for op_type, (count, _) in self._uncosted.items()}

    @cached_property
    def uncosted_shares(self) -> dict[str, float]:
        """Their shares of all bytes that the step's ops read and write."""
        whole = sum(cost.moved_bytes for cost in self.costs)
        return {op_type: moved / whole if whole else 0.0 for op_type, (_, moved) in self._uncosted.items()}

    @cached_property
    def _uncosted(self) -> dict[str, tuple[int, int]]:
        """Executions and bytes of each op type without a cost formula."""
        totals: dict[str, tuple[int, int]] = {}
        stack = [(op.type, cost, 1) for op, cost in zip(self.graph.ops, self.costs, strict=True)]
        while stack:
            op_type, cost, times = stack.pop()
            if cost.parts:
                stack += [(part.type, part.cost, times * part.times) for part in cost.parts]
            elif not cost.costed:
                count, moved = totals.get(op_type, (0, 0))
                totals[op_type] = count + times, moved + times * cost.moved_bytes
        return dict(sorted(totals.items()))

    def to_networkx(self) -> nx.DiGraph:
        """The op graph with `flops`, `moved_bytes`, `seconds` on nodes and `size_bytes` on edges."""
        graph = self.graph.to_networkx()
        for op, cost, seconds in zip(self.graph.ops, self.costs, self.seconds, strict=True):
            graph.nodes[op.name].update(flops=cost.flops, moved_bytes=cost.moved_bytes, seconds=seconds)
        for _, _, edge in graph.edges(data=True):
            edge["size_bytes"] = sum(self.graph.tensor[name].size_bytes for name in edge["tensors"])
        return graph
