"""Kinds of devices and kinds of links, as numbers with their sources."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cost_models.specs import ITEM_BYTES

# Arithmetic on the left runs at the first of the rates on the right that a device states, and all other
# arithmetic as float32: short floats are converted and complex numbers are pairs.
_RUNS_AS: Mapping[str, tuple[str, ...]] = {
    "float8_e4m3fn": ("float8", "float16"), "float8_e5m2": ("float8", "float16"), "complex128": ("float64",),
}  # fmt: skip

_MAX_LISTED = 12


class UnknownHardware(LookupError):  # noqa: N818 - named for what the user typed
    """An unknown name. The message lists the closest names, and all names where they are few."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        names = sorted(choices)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        listed = f" (known: {', '.join(names)})" if len(names) <= _MAX_LISTED else ""
        super().__init__(f"unknown {kind} {name!r}{hint}{listed}")
        self.name = name
        self.close = tuple(close)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of device.

    Attributes:
        name: Name in the catalogue, e.g. `a100-80gb`.
        title: Common name.
        peak_flops: Dense FLOP/s by dtype; `float32` is required, `tfloat32` is float32 on tensor cores, `float8` both
            of its kinds.
        memory_bytes: All of its memory, as the driver reports it.
        memory_bandwidth_bytes_per_second: Peak of its main memory.
        launch_overhead_seconds: Time of an op beyond its roofline.
        source: Source of the numbers.
        date: Date of the source, `YYYY-MM`.
        launch_source: Source of the launch overhead, if it differs.
        launch_date: Date of that source.
        compute_capability: Of CUDA, `9.0`; 0 if it has none.
        multiprocessors: Of a GPU, those that compute tiles of products (of AMD, compute units); 0 if unknown, where the
            device takes the time of its roofline.
        driver_names: Its names in drivers, where they differ from the catalogue's name.

    Raises:
        ValueError: Numbers are missing, negative or not finite; the error names the device and their keys.
    """

    name: str
    title: str
    peak_flops: dict[str, float]
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    launch_overhead_seconds: float
    source: str
    date: str
    launch_source: str = ""
    launch_date: str = ""
    compute_capability: float = 0.0
    multiprocessors: int = 0
    driver_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        what = f"device {self.name!r}"
        if not isinstance(self.peak_flops, Mapping):
            raise ValueError(f"{what}: peak_flops is {self.peak_flops!r}, expected FLOP/s by dtype")
        unknown = sorted(set(self.peak_flops) - {*ITEM_BYTES, "tfloat32", "float8"})
        if unknown:
            raise ValueError(f"{what}: peak_flops has the unknown dtype {unknown[0]!r}")
        rates = {f"peak_flops.{dtype}": rate for dtype, rate in self.peak_flops.items()}
        positive = {"peak_flops.float32": None, **rates} | {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth_bytes_per_second": self.memory_bandwidth_bytes_per_second,
        }
        not_negative = {
            "launch_overhead_seconds": self.launch_overhead_seconds,
            "compute_capability": self.compute_capability,
            "multiprocessors": self.multiprocessors,
        }
        _check(what, positive, not_negative)

    def peak_flops_for(self, dtype: str) -> float:
        """Peak FLOP/s of arithmetic on `dtype`.

        float32 gets the rate of TF32 tensor cores where there are any: TensorFlow runs float32 contractions
        on them unless `tf.config.experimental.enable_tensor_float_32_execution(False)`, and other float32
        ops are bound by bandwidth at either rate. A 16-bit float without a rate of its own runs as float32,
        an 8-bit float as float16, complex numbers as their parts. float64 without a rate of its own runs at half
        of float32's, its share of a vector register. Integers, booleans, strings and handles run at float32's
        rate.

        Raises:
            ValueError: No such dtype.
        """
        plain = self.peak_flops["float32"]
        if dtype == "float32":
            return max(plain, self.peak_flops.get("tfloat32", 0.0))
        if dtype == "float64":
            return self.peak_flops.get("float64", plain / 2)
        if dtype in self.peak_flops:
            return self.peak_flops[dtype]
        if dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(sorted(ITEM_BYTES))}")
        choices = _RUNS_AS.get(dtype, ())
        stated = next((choice for choice in choices if choice in self.peak_flops), None)
        return self.peak_flops_for(stated or (choices[-1] if choices else "float32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link from a device to another device.

    Attributes:
        name: Name in the catalogue, e.g. `nvlink3`.
        latency_seconds: Time of a message beyond its bytes.
        bandwidth_bytes_per_second: Bandwidth in this direction.
        source: Source of the bandwidth, and of the latency unless it has its own.
        date: Date of the source, `YYYY-MM`.
        latency_source: Source of the latency, if it differs.
        latency_date: Date of that source.

    Raises:
        ValueError: Numbers are missing, negative or not finite; the error names the link and their keys.
    """

    name: str
    latency_seconds: float
    bandwidth_bytes_per_second: float
    source: str
    date: str
    latency_source: str = ""
    latency_date: str = ""

    def __post_init__(self) -> None:
        positive = {"bandwidth_bytes_per_second": self.bandwidth_bytes_per_second}
        _check(f"link {self.name!r}", positive, {"latency_seconds": self.latency_seconds})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLink(Link):
    """Several links in series, as a message takes them through the memory of hosts."""

    hops: tuple[Link, ...]


def _check(what: str, positive: Mapping[str, object], not_negative: Mapping[str, object]) -> None:
    problems = [
        f"{key} is {value!r}, expected a finite number {bound}"
        for numbers, bound in ((positive, "above 0"), (not_negative, "of at least 0"))
        for key, value in numbers.items()
        if isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
        or (value == 0 and numbers is positive)
    ]
    if problems:
        raise ValueError(f"{what}: {'; '.join(problems)}")
