"""The catalogue of real devices, links and hosts, read from TOML, with a source for every number."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from cost_models.hardware import Device, Link, UnknownHardware

_FILES = ("hardware.toml", "hosts.toml")
# A delay of the catalogue is listed in an entry under the left name and becomes the fields on the right.
_DELAYS: Mapping[str, tuple[str, str, str]] = {
    "launch": ("launch_overhead_seconds", "launch_source", "launch_date"),
    "latency": ("latency_seconds", "latency_source", "latency_date"),
}
_TEXTS = ("title", "source", "date")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """A kind of host: a machine with several devices, of which a topology can have any number.

    Attributes:
        name: Name in the catalogue, e.g. `dgx-h100`.
        title: Common name.
        device: Catalogue name of its devices.
        num_devices: Number of devices.
        within: Names of the links, in series, between two of its devices.
        between: Names of the links, in series, to a device of another host.
        uplink: Name of the link that all traffic of the host with others shares; empty where nothing is shared.
        source: Source of the numbers.
        date: Date of the source, `YYYY-MM`.
    """

    name: str
    title: str
    device: str
    num_devices: int
    within: tuple[str, ...]
    between: tuple[str, ...]
    source: str
    date: str
    uplink: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.num_devices, bool) or not isinstance(self.num_devices, int) or self.num_devices < 1:
            raise ValueError(f"host {self.name!r}: num_devices is {self.num_devices!r}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every device, link and kind of host with published numbers, by name."""

    devices: Mapping[str, Device]
    links: Mapping[str, Link]
    hosts: Mapping[str, HostKind]


@cache
def catalogue() -> Catalogue:
    """The contents of hardware.toml and hosts.toml."""
    package = files("cost_models")
    return read_catalogue("\n".join(package.joinpath(name).read_text(encoding="utf-8") for name in _FILES))


def read_catalogue(text: str) -> Catalogue:
    """Read a catalogue: TOML with tables `[device.NAME]`, `[link.NAME]`, `[host.NAME]` and `[delay.NAME]`.

    Keys are the types' fields. In place of its seconds, a device may list delays as `launch`, and a link as `latency`:
    their seconds are added up and their sources are kept.

    Raises:
        ValueError: A key is missing, unknown, negative or not a number; the error names entry and key.
    """
    data = tomllib.loads(text)
    delays = data.get("delay", {})
    return Catalogue(
        devices={name: read_entry(Device, name, table, delays) for name, table in data.get("device", {}).items()},
        links={name: read_entry(Link, name, table, delays) for name, table in data.get("link", {}).items()},
        hosts={name: read_entry(HostKind, name, table, delays) for name, table in data.get("host", {}).items()},
    )


def read_entry(
    kind: Callable[..., T], name: str, table: Mapping[str, Any], delays: Mapping[str, Any] | None = None
) -> T:
    """An entry of a TOML file as a value of this kind.

    Raises:
        ValueError: A key is missing, unknown, negative or not a number; the error names entry and key.
    """
    what = f"{kind.__name__.removesuffix('Kind').lower()} {name!r}"
    by_name = {field.name: field for field in fields(kind) if field.name != "name"}  # type: ignore[arg-type]
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    for key, names in _DELAYS.items():
        if key in values and names[0] in by_name:
            values |= dict(zip(names, _added_up(what, key, values.pop(key), delays or {}), strict=True))
    missing = sorted(key for key, field in by_name.items() if field.default is MISSING and key not in values)
    unknown = sorted(values.keys() - by_name.keys())
    if missing or unknown:
        raise ValueError(f"{what}: {'; '.join(_complaints(missing, unknown, by_name))}")
    if not isinstance(values.get("driver_names", ()), tuple):
        raise ValueError(f"{what}: driver_names is {values['driver_names']!r}, expected a list of names")
    for key in _TEXTS:
        if key in values and not (isinstance(values[key], str) and values[key].strip()):
            raise ValueError(f"{what}: {key} is {values[key]!r}, expected text")
    return kind(name=name, **values)


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


def host_named(name: str) -> HostKind:
    """The catalogue's kind of host of this name, upper and lower case alike.

    Raises:
        UnknownHardware: There is none.
    """
    return _lookup("topology", catalogue().hosts, name)


def _lookup(kind: str, table: Mapping[str, T], name: str) -> T:
    entry = table.get(name.lower())
    if entry is None:
        raise UnknownHardware(kind, name, table)
    return entry


def _complaints(missing: Sequence[str], unknown: Sequence[str], keys: Iterable[str]) -> Iterator[str]:
    if missing:
        yield f"missing key{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    for key in unknown:
        close = get_close_matches(key, keys, n=1)
        yield f"unknown key {key!r}" + (f", did you mean {close[0]}?" if close else "")


def _added_up(what: str, key: str, names: object, delays: Mapping[str, Any]) -> tuple[float, str, str]:
    """Seconds, source and newest date of delays in series."""
    if not isinstance(names, tuple) or not names or any(name not in delays for name in names):
        raise ValueError(f"{what}: {key} is {names!r}, expected a list of {', '.join(sorted(delays))}")
    parts = [delays[name] for name in names]
    # In whole picoseconds, so that 20 us and 5 us are 25 us to the last digit.
    seconds = sum(round(part["seconds"] * 1e12) for part in parts) / 1e12
    return seconds, "; ".join(part["source"] for part in parts), max(part["date"] for part in parts)
