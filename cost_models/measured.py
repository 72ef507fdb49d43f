"""Measured seconds of ops on a real device, and inferred seconds of ops that did not run there.

A measured op has its measured time. Any other op has the time of an op without work, plus its roofline time times a
ratio: measured over roofline time of the nearest measured ops, of the same type and dtype, near in FLOPs and bytes.
(The ratio is the reciprocal of the achieved fraction of peak. Ops that took hardly longer than ops without work have no
ratio, nor have ops with so little work that noise dominates their time.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cost_models.calls import CallCost
from cost_models.hardware import Device, Link
from cost_models.roofline import op_seconds
from cost_models.specs import OpCost, OpSpec, TensorSpec

SCHEMA = "partition-costs/1"
NUM_NEIGHBOURS = 4
MEASURED_LINK = "measured"
"""Name of links that were measured."""
# Negligible work, and the least ratio of an op's time to that of ops without work at which its work shows.
_IDLE_FLOPS = _IDLE_BYTES = 1024
_LEAST_WORK_RATIO = 3.0
# A tenth of that time is the least roofline time for a ratio: on less, noise could give any ratio.
_LEAST_WORK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOp:
    """A measured op.

    Attributes:
        type: Op type.
        dtype: Dtype of its arithmetic.
        flops: FLOPs of an execution, by its formula.
        moved_bytes: Bytes of an execution, by its formula.
        seconds: Median seconds of an execution.
        num_runs: Number of measured steps.
        crowded_seconds: Seconds of an execution while other devices of the host ran the same step; 0 if not measured.
    """

    type: str
    dtype: str
    flops: int
    moved_bytes: int
    seconds: float
    num_runs: int
    crowded_seconds: float = 0.0

    def __post_init__(self) -> None:
        for seconds in (self.seconds, self.crowded_seconds):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{self.type} was measured to take {seconds} seconds")
        if self.flops < 0 or self.moved_bytes < 0 or self.num_runs < 1:
            raise ValueError(f"{self.type} has {self.flops} FLOPs, {self.moved_bytes} bytes, {self.num_runs} runs")

    def seconds_of(self, *, crowded: bool) -> float:
        """Seconds of an execution, alone or crowded; crowded is never faster."""
        return max(self.seconds, self.crowded_seconds) if crowded else self.seconds


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """Measured ops of a kind of device.

    Attributes:
        type: `CPU` or `GPU`.
        title: Its name in the driver or kernel.
        hardware: The catalogue's device for roofline times.
        overhead_seconds: Time between two working ops, beyond their own time.
        ops: Measured ops by signature.
        crowd: Number of busy devices, with this device, when `crowded_seconds` was measured; 1 if it was not.
        call: What calls of stage programs take; None if it was not measured.
    """

    type: str
    title: str
    hardware: str
    overhead_seconds: float
    ops: Mapping[str, MeasuredOp] = field(default_factory=dict)
    crowd: int = 1
    call: CallCost | None = None

    def seconds(self, op: OpSpec, cost: OpCost, device: Device, dtype: str, *, crowded: bool = False) -> float:
        """Seconds of an execution of `op`, measured or inferred, with the overhead.

        Args:
            op: The op.
            cost: Its cost.
            device: The device of the roofline, for inference.
            dtype: Dtype of its arithmetic.
            crowded: Whether all devices of the crowd are busy.
        """
        if cost.flops == 0 and cost.moved_bytes == 0:
            return 0.0
        own = self.ops.get(signature(op))
        if own is not None:
            return own.seconds_of(crowded=crowded) + self.overhead_seconds
        work = self._ratio(op.type, cost, dtype, device, crowded) * _roofline_seconds(cost, device, dtype)
        return self._idle_seconds + work + self.overhead_seconds

    def has(self, op: OpSpec) -> bool:
        """Whether this op was measured."""
        return signature(op) in self.ops

    def merged(self, other: MeasuredDevice) -> MeasuredDevice:
        """The measured ops of both; `other` wins where both have an op."""
        return replace(other, ops={**self.ops, **other.ops})

    def _ratio(self, op_type: str, cost: OpCost, dtype: str, device: Device, crowded: bool) -> float:
        """Measured over roofline time: geometric mean of the nearest ops, weighted by 1 / distance."""
        alike = (self._of_type.get((op_type, dtype), ()), self._of_dtype.get(dtype, ()), self._of_dtype.get("", ()))
        usable = ([op for op in ops if self._shows_work(op, device)] for ops in alike)
        candidates = next(filter(None, usable), [])
        if not candidates:
            return 1.0
        nearest = sorted((_distance(op, cost), index) for index, op in enumerate(candidates))[:NUM_NEIGHBOURS]
        weights = [1 / (distance + 0.05) for distance, _ in nearest]
        logs = [math.log(_ratio_of(candidates[index], device, self._idle_seconds, crowded)) for _, index in nearest]
        return math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))

    def _shows_work(self, op: MeasuredOp, device: Device) -> bool:
        """Whether the op's work is visible beside the time of an op without work."""
        cost = OpCost(flops=op.flops, read_bytes=op.moved_bytes)
        return _roofline_seconds(cost, device, op.dtype) >= _LEAST_WORK * self._idle_seconds

    @cached_property
    def _idle_seconds(self) -> float:
        """Median seconds of ops with negligible work."""
        idle = [o for o in self.ops.values() if o.flops <= _IDLE_FLOPS and o.moved_bytes <= _IDLE_BYTES]
        seconds = [o.seconds for o in idle if o.seconds > 0]
        return statistics.median(seconds) if seconds else 0.0

    @cached_property
    def _of_type(self) -> dict[tuple[str, str], list[MeasuredOp]]:
        ops_by_type: dict[tuple[str, str], list[MeasuredOp]] = {}
        for op in self.ops.values():
            if op.seconds > _LEAST_WORK_RATIO * self._idle_seconds and (op.flops or op.moved_bytes):
                ops_by_type.setdefault((op.type, op.dtype), []).append(op)
        return ops_by_type

    @cached_property
    def _of_dtype(self) -> dict[str, list[MeasuredOp]]:
        ops_by_dtype: dict[str, list[MeasuredOp]] = {}
        for (_, dtype), ops in self._of_type.items():
            ops_by_dtype.setdefault(dtype, []).extend(ops)
            ops_by_dtype.setdefault("", []).extend(ops)
        return ops_by_dtype


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """A measured link between two types of devices of the same host: latency plus bytes over bandwidth."""

    between: tuple[str, str]
    latency_seconds: float
    bandwidth_bytes_per_second: float

    def as_link(self) -> Link:
        """The link for a topology.

        Raises:
            ValueError: Its numbers are not valid.
        """
        return Link(
            name=MEASURED_LINK,
            latency_seconds=self.latency_seconds,
            bandwidth_bytes_per_second=self.bandwidth_bytes_per_second,
            source="measured",
            date="",
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """All measured costs of a machine.

    Attributes:
        versions: Versions and settings that influence the speed of ops.
        devices: Kinds of devices.
        links: Links between them.
        schema: Schema of the file.
    """

    versions: Mapping[str, str]
    devices: tuple[MeasuredDevice, ...]
    links: tuple[MeasuredLink, ...] = ()
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"these costs are of schema {self.schema!r}, expected {SCHEMA!r}")

    def device(self, type: str, title: str = "") -> MeasuredDevice | None:
        """The measured device of this title, else the first of this type."""
        of_type = [device for device in self.devices if device.type == type]
        return next((device for device in of_type if device.title == title), of_type[0] if of_type else None)


def signature(op: OpSpec) -> str:
    """The op as text, for lookups: `MatMul float32[8,4] float32[4,2] -> float32[8,2]`, with attributes."""
    inputs, outputs = (" ".join(_text(tensor) for tensor in tensors) for tensors in (op.inputs, op.outputs))
    attributes = "".join(f" {key}={op.attributes[key]}" for key in sorted(op.attributes))
    return f"{op.type} {inputs} -> {outputs}{attributes}"


def _text(tensor: TensorSpec) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _roofline_seconds(cost: OpCost, device: Device, dtype: str) -> float:
    return op_seconds(cost, device, dtype) - device.launch_overhead_seconds


def _ratio_of(op: MeasuredOp, device: Device, idle_seconds: float, crowded: bool) -> float:
    cost = OpCost(flops=op.flops, read_bytes=op.moved_bytes)
    return (op.seconds_of(crowded=crowded) - idle_seconds) / _roofline_seconds(cost, device, op.dtype)


def _distance(op: MeasuredOp, cost: OpCost) -> float:
    """Distance of two ops in logarithms of FLOPs and bytes."""
    flops = math.log1p(op.flops) - math.log1p(cost.flops)
    moved = math.log1p(op.moved_bytes) - math.log1p(cost.moved_bytes)
    return math.hypot(flops, moved)
