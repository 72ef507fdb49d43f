"""What a plan runs on: devices, links, and a catalogue of both with a source for every number."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Self, TypeVar

from cost_models.specs import ITEM_BYTES

# Arithmetic on the left runs at the rate on the right where a device states none of its own, and all other
# arithmetic as float32: short floats are converted and complex numbers are pairs.
_RUNS_AS: Mapping[str, str] = {
    "float8_e4m3fn": "float16", "float8_e5m2": "float16", "complex128": "float64",
}  # fmt: skip


class UnknownHardware(LookupError):  # noqa: N818 - named for what the user typed
    """A name that the catalogue does not have. The message lists the closest names and all names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")
        self.name = name
        self.close = tuple(close)
        self.known = tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of device.

    Attributes:
        name: Name in the catalogue, e.g. `a100-80gb`.
        title: Name people know it by.
        peak_flops: Dense FLOP/s by dtype; `float32` is required, `tfloat32` is float32 on tensor cores.
        memory_bytes: All of its memory.
        memory_bandwidth_bytes_per_second: Peak of its main memory.
        launch_overhead_seconds: Time an op takes beyond its roofline.
        source: Where the numbers stand.
        date: When they were published.

    Raises:
        ValueError: Naming the device and the key of every number that is missing, negative or not finite.
    """

    name: str
    title: str
    peak_flops: dict[str, float]
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    launch_overhead_seconds: float
    source: str
    date: str

    def __post_init__(self) -> None:
        rates = {f"peak_flops.{dtype}": rate for dtype, rate in self.peak_flops.items()}
        positive = {"peak_flops.float32": None, **rates} | {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth_bytes_per_second": self.memory_bandwidth_bytes_per_second,
        }
        _check(f"device {self.name!r}", positive, {"launch_overhead_seconds": self.launch_overhead_seconds})

    def peak_flops_for(self, dtype: str) -> float:
        """Peak FLOP/s of arithmetic on `dtype`.

        float32 gets the rate of TF32 tensor cores where there are any: TensorFlow runs float32 contractions
        on them unless `tf.config.experimental.enable_tensor_float_32_execution(False)`, and other float32
        ops are bound by bandwidth at either rate. A 16-bit float without a rate of its own runs as float32,
        an 8-bit float as float16, complex numbers as their parts. float64 without one runs at half of
        float32's, its share of a vector register. Integers, booleans, strings and handles run at float32's
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
        return self.peak_flops_for(_RUNS_AS.get(dtype, "float32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way from one device to another; bandwidth is that of one direction.

    Raises:
        ValueError: Naming the link and the key of every number that is missing, negative or not finite.
    """

    name: str
    latency_seconds: float
    bandwidth_bytes_per_second: float
    source: str
    date: str

    def __post_init__(self) -> None:
        positive = {"bandwidth_bytes_per_second": self.bandwidth_bytes_per_second}
        _check(f"link {self.name!r}", positive, {"latency_seconds": self.latency_seconds})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDevice:
    """One device of a plan: its canonical name, its kind, and how many bytes of it may be used."""

    name: str
    device: Device
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The devices of a plan; `links[a][b]` leads from device a to device b, and the diagonal is ignored.

    Raises:
        ValueError: Listing every violation.
    """

    devices: tuple[TopologyDevice, ...]
    links: tuple[tuple[Link, ...], ...]

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            raise ValueError("the topology is malformed:\n  " + "\n  ".join(problems))

    @classmethod
    def uniform(cls, devices: Iterable[TopologyDevice], link: Link) -> Self:
        """All devices joined by the same kind of link."""
        found = tuple(devices)
        return cls(devices=found, links=((link,) * len(found),) * len(found))

    def index(self, name: str) -> int:
        """Position of the device with this canonical name.

        Raises:
            UnknownHardware: The topology has no such device.
        """
        for index, placed in enumerate(self.devices):
            if placed.name == name:
                return index
        raise UnknownHardware("device of the topology", name, (placed.name for placed in self.devices))

    def link(self, a: int, b: int) -> Link:
        """The link from device a to device b."""
        return self.links[a][b]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every device and link we know numbers of, by name."""

    devices: Mapping[str, Device]
    links: Mapping[str, Link]


@cache
def catalogue() -> Catalogue:
    """The contents of hardware.toml."""
    return read_catalogue(files("cost_models").joinpath("hardware.toml").read_text(encoding="utf-8"))


def read_catalogue(text: str) -> Catalogue:
    """Read a catalogue: TOML with tables `[device.NAME]` and `[link.NAME]` whose keys are the types' fields.

    Raises:
        ValueError: Naming the entry and the key that is missing, unknown, negative or not a number.
    """
    data = tomllib.loads(text)
    return Catalogue(
        devices={name: _entry(Device, name, table) for name, table in data.get("device", {}).items()},
        links={name: _entry(Link, name, table) for name, table in data.get("link", {}).items()},
    )


def device_named(name: str) -> Device:
    """The catalogue's device of this name, upper and lower case alike.

    Raises:
        UnknownHardware: There is none.
    """
    return _lookup("hardware", catalogue().devices, name)


def link_named(name: str) -> Link:
    """The catalogue's link of this name, upper and lower case alike.

    Raises:
        UnknownHardware: There is none.
    """
    return _lookup("link", catalogue().links, name)


T = TypeVar("T")


def _lookup(kind: str, table: Mapping[str, T], name: str) -> T:
    found = table.get(name.lower())
    if found is None:
        raise UnknownHardware(kind, name, table)
    return found


def _entry(kind: type[Any], name: str, table: Mapping[str, Any]) -> Any:
    what = f"{kind.__name__.lower()} {name!r}"
    expected = {field.name for field in fields(kind)} - {"name"}
    missing, unknown = sorted(expected - table.keys()), sorted(table.keys() - expected)
    if missing or unknown:
        raise ValueError(f"{what}: missing keys {missing}, unknown keys {unknown}")
    for key in ("title", "source", "date"):
        if key in expected and not (isinstance(table[key], str) and table[key].strip()):
            raise ValueError(f"{what}: {key} is {table[key]!r}, expected text")
    return kind(name=name, **table)


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


def _violations(topology: Topology) -> Iterable[str]:
    names = [placed.name for placed in topology.devices]
    if not names:
        yield "no devices"
    if [len(row) for row in topology.links] != [len(names)] * len(names):
        sizes = [len(row) for row in topology.links]
        yield f"links must be {len(names)} x {len(names)}, have rows of {sizes}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two devices are named {name!r}"
    for placed in topology.devices:
        if placed.memory_bytes < 0:
            yield f"device {placed.name!r} may use {placed.memory_bytes} bytes, expected at least 0"
