"""The error when nothing fits: the bytes needed, the bytes available, and changes that help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cost_models.specs import TensorSpec
from cost_models.topology import TopologyDevice
from partitioner.errors import InfeasibleError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import MAX_NAMED, listed_devices, short_name
from partitioner.ir.op_graph import Phase, Tensor, VariableKind
from partitioner.ir.units import format_bytes
from partitioner.planner.layouts.result import MemoryShortfall
from partitioner.planner.model.buffers import total_bytes
from partitioner.planner.model.item_bytes import lasting_item_bytes
from partitioner.planner.simulate.unpipelined import simulate
from partitioner.spelling import argument


def described(shortfall: MemoryShortfall) -> InfeasibleError:
    """The error with its numbers, and with changes that are computed to help."""
    return _Description(shortfall).error()


class _Description:
    def __init__(self, shortfall: MemoryShortfall) -> None:
        self.costed, self.coarsening = shortfall.costed, shortfall.coarsening
        self.attempts, self.alternatives = shortfall.attempts, shortfall.alternatives

    def error(self) -> InfeasibleError:
        devices = self.costed.topology.devices
        need = self._bytes_by_kind()
        size, name = max(zip(lasting_item_bytes(self.costed, self.coarsening), self.coarsening.names, strict=True))
        have = ", ".join(_memory_of(devices))
        total = sum(need.values())
        room = sum(placed.memory_bytes for placed in devices)
        kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in need.items() if size > total / 1000)
        return InfeasibleError(
            "the model does not fit on the given devices",
            notes=[
                f"needs    {format_bytes(total)}: {kinds}",
                f"have     {format_bytes(room)}: {have}",
                *(self._closest() if total <= room else []),
                f"largest part: {name} {format_bytes(size)}{self._too_large(size)}",
            ],
            help=", or ".join([*self.alternatives, *self._changes()]) or None,
        )

    def _closest(self) -> list[str]:
        """By how much the best placement that was tried passes the limit of a device."""
        devices = self.costed.topology.devices
        excess: list[tuple[int, int, str, int]] = []
        for placement in self.attempts:
            peak = simulate(self.costed, placement).peak
            excess.append(
                max(
                    (peak[d.name].total_bytes - d.memory_bytes, peak[d.name].total_bytes, d.name, d.memory_bytes)
                    for d in devices
                )
            )
        if not excess:
            return []
        _, held, name, limit = min(excess)
        return [
            f"closest: {short_name(name)} would hold {format_bytes(held)} at its peak and has {format_bytes(limit)}; "
            "activations lie where they are made, and parts cannot be split"
        ]

    def _too_large(self, size: int) -> str:
        room = max(placed.memory_bytes for placed in self.costed.topology.devices)
        return ", more than any device has; parts cannot be split" if size > room else ""

    def _bytes_by_kind(self) -> dict[str, int]:
        """Bytes kept between phases; in inference nothing is kept, and the peak on one device counts."""
        need = total_bytes(self.costed)
        if not self.costed.graph.training:
            alone = simulate(self.costed, dict.fromkeys(self.costed.graph.op, 0))
            need["activations"] = max(use.activation_bytes for use in alone.peak.values())
        return need

    def _changes(self) -> list[str]:
        slots = sum(v.size_bytes for v in self.costed.graph.variables if v.kind is VariableKind.SLOT)
        changes = []
        if slots and self._fits_somewhere(self.costed, without_slots=True):
            changes.append(f"{argument('optimizer', 'sgd')} (-{format_bytes(slots)})")
        batch_size = self._batch_size_that_fits()
        if batch_size:
            changes.append(argument("batch_size", batch_size))
        return changes

    def _batch_size_that_fits(self) -> int | None:
        size = self.costed.graph.batch_size // 2
        # Each size takes as long, and where one row does not fit, no more do.
        if size > 1 and not self._fits_somewhere(with_batch_size(self.costed, 1)):
            return None
        while size >= 1:
            if self._fits_somewhere(with_batch_size(self.costed, size)):
                return size
            size //= 2
        return None

    def _fits_somewhere(self, costed: CostedGraph, *, without_slots: bool = False) -> bool:
        """Whether a placement that was tried fits; none does without room for what the forward pass leaves."""
        kept = total_bytes(costed)
        least = sum(kept.values()) - kept["gradients"] - without_slots * kept["slots"]
        if least > sum(placed.memory_bytes for placed in costed.topology.devices):
            return False
        for placement in self.attempts:
            peak = simulate(costed, placement).peak
            if all(
                peak[placed.name].total_bytes - without_slots * peak[placed.name].slot_bytes <= placed.memory_bytes
                for placed in costed.topology.devices
            ):
                return True
        return False


def _memory_of(devices: Sequence[TopologyDevice]) -> Iterator[str]:
    """What each device has; of many, those with the same memory together."""
    if len(devices) <= MAX_NAMED:
        yield from (f"{short_name(placed.name)} {format_bytes(placed.memory_bytes)}" for placed in devices)
        return
    for size in dict.fromkeys(placed.memory_bytes for placed in devices):
        alike = [placed.name for placed in devices if placed.memory_bytes == size]
        yield f"{listed_devices(alike)} {format_bytes(size)} each"


def with_batch_size(costed: CostedGraph, batch_size: int) -> CostedGraph:
    """The graph with the tensors it would have at another batch size; costs stay as they are.

    A tensor of the forward or backward pass grows with the batch when its first dimension is a multiple of
    the batch size and no variable has its shape.
    """
    graph = costed.graph
    shapes = {variable.spec.shape for variable in graph.variables}

    def scaled(tensor: Tensor) -> Tensor:
        shape = tensor.spec.shape
        fixed = graph.op[tensor.producer].phase is Phase.UPDATE or shape in shapes
        if fixed or not shape or shape[0] % graph.batch_size:
            return tensor
        rows = shape[0] // graph.batch_size * batch_size
        return replace(tensor, spec=TensorSpec(shape=(rows, *shape[1:]), dtype=tensor.spec.dtype))

    tensors = tuple(scaled(tensor) for tensor in graph.tensors)
    return replace(costed, graph=replace(graph, tensors=tensors, batch_size=batch_size))
