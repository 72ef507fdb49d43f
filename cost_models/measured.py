"""Seconds that ops took on a real device, and what they tell of ops that did not run there.

An op that was measured takes what it took. Any other takes what ops without work take, and its roofline time, times how
far from their roofline times the measured ops nearest to it were: the same type on the same dtype, near in FLOPs and
bytes. (That ratio is the reciprocal of the achieved fraction of peak. Ops that took hardly longer than those without
work have none, nor have ops with so little work that noise decides what they took.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cost_models.hardware import Device, Link
from cost_models.roofline import op_seconds
from cost_models.specs import OpCost, OpSpec, TensorSpec

SCHEMA = "partition-costs/1"
NUM_NEIGHBOURS = 4
MEASURED_LINK = "measured"
"""Name of links that were measured."""
# Work that no device notices, and how many times longer than without work an op must take to tell of its work.
_IDLE_FLOPS = _IDLE_BYTES = 1024
_TELLING = 3.0
# A tenth of that time is the least roofline time that a ratio is taken of: to noise on less, no ratio is too large.
_LEAST_WORK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOp:
    """An op that ran.

    Attributes:
        type: Op type.
        dtype: What its arithmetic is on.
        flops: Of one execution, by its formula.
        moved_bytes: Of one execution, by its formula.
        seconds: Of one execution: the median.
        num_runs: Steps behind it.
        crowded_seconds: Of one execution while other devices of the host ran the same step; 0 if that was not measured.
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
        """Seconds of one execution, alone or among others; a crowd makes nothing faster."""
        return max(self.seconds, self.crowded_seconds) if crowded else self.seconds


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """What ops took on one kind of device.

    Attributes:
        type: `CPU` or `GPU`.
        title: What its driver or kernel calls it.
        hardware: The catalogue's device whose peaks ratios are taken of.
        overhead_seconds: From one working op to the next, beyond the ops' own time.
        ops: By signature.
        crowd: How many devices were busy, this one among them, when `crowded_seconds` were measured; 1 if none were.
    """

    type: str
    title: str
    hardware: str
    overhead_seconds: float
    ops: Mapping[str, MeasuredOp] = field(default_factory=dict)
    crowd: int = 1

    def seconds(self, op: OpSpec, cost: OpCost, device: Device, dtype: str, *, crowded: bool = False) -> float:
        """Seconds of one execution of `op`, as measured or inferred, with the overhead.

        Args:
            op: The op.
            cost: Its cost.
            device: The device to take the roofline of, where it must be inferred.
            dtype: What its arithmetic is on.
            crowded: While all devices of the crowd are busy.
        """
        if cost.flops == 0 and cost.moved_bytes == 0:
            return 0.0
        own = self.ops.get(signature(op))
        if own is not None:
            return own.seconds_of(crowded=crowded) + self.overhead_seconds
        work = self._ratio(op.type, cost, dtype, device, crowded) * _roofline_seconds(cost, device, dtype)
        return self._idle_seconds + work + self.overhead_seconds

    def has(self, op: OpSpec) -> bool:
        """Whether this very op was measured."""
        return signature(op) in self.ops

    def merged(self, other: MeasuredDevice) -> MeasuredDevice:
        """What both know; where both do, what `other` says."""
        return replace(other, ops={**self.ops, **other.ops})

    def _ratio(self, op_type: str, cost: OpCost, dtype: str, device: Device, crowded: bool) -> float:
        """Measured over roofline time: geometric mean of the nearest, each weighed by one over its distance."""
        alike = (self._of_type.get((op_type, dtype), ()), self._of_dtype.get(dtype, ()), self._of_dtype.get("", ()))
        known = next((found for ops in alike if (found := [one for one in ops if self._tells(one, device)])), [])
        if not known:
            return 1.0
        nearest = sorted((_distance(one, cost), index) for index, one in enumerate(known))[:NUM_NEIGHBOURS]
        weights = [1 / (distance + 0.05) for distance, _ in nearest]
        logs = [math.log(_ratio_of(known[index], device, self._idle_seconds, crowded)) for _, index in nearest]
        return math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))

    def _tells(self, op: MeasuredOp, device: Device) -> bool:
        """Whether the op's work is not lost in what an op takes anyway."""
        cost = OpCost(flops=op.flops, read_bytes=op.moved_bytes)
        return _roofline_seconds(cost, device, op.dtype) >= _LEAST_WORK * self._idle_seconds

    @cached_property
    def _idle_seconds(self) -> float:
        """What an op takes that has next to nothing to do."""
        idle = [o.seconds for o in self.ops.values() if o.flops <= _IDLE_FLOPS and o.moved_bytes <= _IDLE_BYTES]
        return statistics.median(found) if (found := [seconds for seconds in idle if seconds > 0]) else 0.0

    @cached_property
    def _of_type(self) -> dict[tuple[str, str], list[MeasuredOp]]:
        found: dict[tuple[str, str], list[MeasuredOp]] = {}
        for op in self.ops.values():
            if op.seconds > _TELLING * self._idle_seconds and (op.flops or op.moved_bytes):
                found.setdefault((op.type, op.dtype), []).append(op)
        return found

    @cached_property
    def _of_dtype(self) -> dict[str, list[MeasuredOp]]:
        found: dict[str, list[MeasuredOp]] = {}
        for (_, dtype), ops in self._of_type.items():
            found.setdefault(dtype, []).extend(ops)
            found.setdefault("", []).extend(ops)
        return found


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """What transfers took from one type of device to another on one host: latency plus bytes over bandwidth."""

    between: tuple[str, str]
    latency_seconds: float
    bandwidth_bytes_per_second: float

    def as_link(self) -> Link:
        """The link that a topology holds.

        Raises:
            ValueError: Its numbers are none.
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
    """All that was measured on one machine.

    Attributes:
        versions: Of the libraries and settings that decide how fast ops run.
        devices: Kinds of devices.
        links: Between them.
        schema: Of the file.
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
    """What decides how long an op takes, as text: `MatMul float32[8,4] float32[4,2] -> float32[8,2]`, attributes."""
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
    """How far apart two ops are in powers of e of FLOPs and bytes."""
    flops = math.log1p(op.flops) - math.log1p(cost.flops)
    moved = math.log1p(op.moved_bytes) - math.log1p(cost.moved_bytes)
    return math.hypot(flops, moved)
