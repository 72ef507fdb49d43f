"""Read a topology file of the user: devices, the links between them, and uplinks that links share.

    link = "pcie4"                          # between devices that no entry below joins

    [[devices]]
    names = "GPU:0-3"                       # as on the command line
    hardware = "a100-80gb"                  # from the catalogue, or a table of numbers
    memory = "70GiB"                        # usable bytes of each; by default all that TensorFlow allocates

    [[links]]
    among = "GPU:0-3"                       # each pair, both directions; or between = [A, B], or from and to
    link = "nvlink3"                        # or a table of numbers; or via = ["pcie4", "pcie4"], in series

    [[uplinks]]
    devices = "GPU:0-3"                     # all transfers between these and other devices share a link
    link = "ethernet-100g"

If several entries join the same pair, the last counts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cost_models.catalogue import device_named, link_named, read_entry
from cost_models.communication import in_series
from cost_models.hardware import Device, Link, UnknownHardware
from cost_models.topology import Topology, TopologyDevice, Uplink
from partitioner.errors import UsageError
from partitioner.hardware.topology import SHOW_ALL, parse_bytes, usable_bytes
from partitioner.ir.devices import DeviceName, parse_devices
from partitioner.spelling import command

_ENDS = {"among", "between", "from", "to"}
_RATE = "bytes per second"
# The file may give 80 GiB for a device of 80 GB.
_ROUNDED = 2**30 / 10**9


def read_topology(path: Path) -> Topology:
    """Read a topology file.

    Raises:
        UsageError: It cannot be read, or an entry is wrong; the error names file, entry and key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from error
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        raise UsageError(
            f"not TOML: {str(error)[: at.start()] if at else error}", where=f"{path}:{at[1]}" if at else str(path)
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"not TOML: {what}", where=str(path)) from error
    with _located(str(path)):
        _check_keys(data, required={"devices"}, optional={"link", "links", "uplinks"})
        placed = _devices(path, data["devices"])
        position = {name: index for index, name in enumerate(placed)}
        tasks = {task: host for host, task in enumerate(dict.fromkeys(map(_task, placed)))}
        return Topology(
            devices=tuple(placed.values()),
            links=_links(path, data, position),
            hosts=tuple(tasks[_task(name)] for name in placed),
            uplinks=tuple(_uplinks(path, data.get("uplinks", []), position)),
        )


def _devices(path: Path, tables: object) -> dict[DeviceName, TopologyDevice]:
    placed: dict[DeviceName, TopologyDevice] = {}
    for where, table in _entries(path, "devices", tables):
        with _located(where):
            _check_keys(table, required={"names", "hardware"}, optional={"memory"})
            names = _names(table, "names")
            device = _device(path, table["hardware"])
            limit = _memory(table["memory"], device) if "memory" in table else None
            for name in names:
                if name in placed:
                    raise ValueError(f"names: {name.short} has an entry already")
                memory_bytes = usable_bytes(name, device) if limit is None else limit
                placed[name] = TopologyDevice(name=name.canonical, device=device, memory_bytes=memory_bytes)
    return placed


def _memory(value: Any, device: Device) -> int:
    size_bytes = parse_bytes(value)
    if size_bytes > _ROUNDED * device.memory_bytes:
        raise ValueError(f"memory is {value!r}, which is more than the {device.memory_bytes:,} bytes of {device.name}")
    return size_bytes


def _links(path: Path, data: Mapping[str, Any], position: Mapping[DeviceName, int]) -> tuple[tuple[Link, ...], ...]:
    count = len(position)
    default = _link(path, "link", data["link"]) if "link" in data else None
    rows: list[list[Link | None]] = [[default] * count for _ in range(count)]
    for where, table in _entries(path, "links", data.get("links", [])):
        with _located(where):
            _check_keys(table, required=set(), optional={*_ENDS, "link", "via"})
            if ("link" in table) == ("via" in table):
                raise ValueError("expected one of the keys link and via")
            link = _link(path, "link", table["link"]) if "link" in table else _path_of_links(path, table["via"])
            pairs = list(_pairs(table, position))
            if not pairs:
                raise ValueError("joins no device with another device")
            for source, target in pairs:
                rows[source][target] = link
    names = list(position)
    bare = [(a, b) for a, row in enumerate(rows) for b, link in enumerate(row) if link is None and a != b]
    if bare:
        first = " to ".join(names[index].short for index in bare[0])
        more = f" and of {len(bare) - 1} more pairs" if len(bare) > 1 else ""
        raise UsageError(
            f"links: no link joins {first}{more}",
            help='name what joins all other devices in the first line of the file: link = "pcie4"',
        )
    # The link from a device to itself is never read; any link will do.
    any_link = next((link for row in rows for link in row if link is not None), link_named("shared-memory"))
    return tuple(tuple(link or any_link for link in row) for row in rows)


def _pairs(table: Mapping[str, Any], position: Mapping[DeviceName, int]) -> Iterator[tuple[int, int]]:
    """Source and target of every pair that an entry joins."""
    given = _ENDS & table.keys()
    if given == {"among"}:
        inside = _indices(table, "among", position)
        yield from ((a, b) for a in inside for b in inside if a != b)
    elif given == {"between"}:
        ends = table["between"]
        if not isinstance(ends, list) or len(ends) != 2:
            raise ValueError(f"between is {ends!r}, expected two lists of devices")
        a_side, b_side = (_indices({"between": end}, "between", position) for end in ends)
        yield from ((a, b) for a in a_side for b in b_side if a != b)
        yield from ((b, a) for a in a_side for b in b_side if a != b)
    elif given == {"from", "to"}:
        sources, targets = _indices(table, "from", position), _indices(table, "to", position)
        yield from ((a, b) for a in sources for b in targets if a != b)
    else:
        raise ValueError("expected the key among, or between, or from and to")


def _uplinks(path: Path, tables: object, position: Mapping[DeviceName, int]) -> Iterator[Uplink]:
    for number, (where, table) in enumerate(_entries(path, "uplinks", tables), start=1):
        with _located(where):
            _check_keys(table, required={"devices", "link"}, optional={"name"})
            devices = frozenset(_indices(table, "devices", position))
            if len(devices) == len(position):
                raise ValueError("devices: these are all there are, so that nothing would take the uplink")
            name = str(table.get("name", f"uplink {number}"))
            yield Uplink(name=name, devices=devices, link=_link(path, "link", table["link"]))


def _device(path: Path, value: object) -> Device:
    if isinstance(value, str):
        return device_named(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"hardware is {value!r}, expected a name or a table of numbers")
    own = {"name": f"of {path.name}", "title": "a device of the user", "source": path.name, "date": "own", **value}
    with _in_plain_units():
        device = read_entry(Device, str(own.pop("name")), own)
        _check_sizes(
            f"device {device.name!r}",
            {f"peak_flops.{dtype}": (rate, "FLOP/s", 1e8, 1e17) for dtype, rate in device.peak_flops.items()}
            | {
                "memory_bytes": (device.memory_bytes, "bytes", 1e6, 1e14),
                "memory_bandwidth_bytes_per_second": (device.memory_bandwidth_bytes_per_second, _RATE, 1e7, 1e15),
                "launch_overhead_seconds": (device.launch_overhead_seconds, "seconds", 0.0, 0.1),
            },
        )
    return replace(device, memory_bytes=int(device.memory_bytes))  # 16e9 is a float


def _link(path: Path, key: str, value: object) -> Link:
    if isinstance(value, str):
        return link_named(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}, expected a name or a table of numbers")
    own = {"name": f"of {path.name}", "source": path.name, "date": "own", **value}
    with _in_plain_units():
        link = read_entry(Link, str(own.pop("name")), own)
        _check_sizes(
            f"link {link.name!r}",
            {
                "latency_seconds": (link.latency_seconds, "seconds", 0.0, 10.0),
                "bandwidth_bytes_per_second": (link.bandwidth_bytes_per_second, _RATE, 1e3, 1e18),
            },
        )
    return link


def _check_sizes(what: str, numbers: Mapping[str, tuple[float, str, float, float]]) -> None:
    """Refuse implausible numbers: most often, the unit is wrong."""
    for key, (value, unit, least, most) in numbers.items():
        if not least <= value <= most:
            raise ValueError(f"{what}: {key} is {value:g} {unit}, expected {least:g} to {most:g}")


@contextmanager
def _in_plain_units() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UsageError(
            str(error),
            help="FLOP/s, bytes, bytes per second and seconds: 19.5 TFLOP/s is 19.5e12, 25 us is 25e-6; "
            f"{command(SHOW_ALL, json=True)} prints examples",
        ) from error


def _path_of_links(path: Path, value: object) -> Link:
    if not isinstance(value, list):
        raise ValueError(f"via is {value!r}, expected a list of links in series")
    return in_series([_link(path, "via", hop) for hop in value])


def _indices(table: Mapping[str, Any], key: str, position: Mapping[DeviceName, int]) -> list[int]:
    names = _names(table, key)
    strangers = [name.short for name in names if name not in position]
    if strangers:
        raise ValueError(f"{key}: {', '.join(strangers)} has no entry under [[devices]]")
    return [position[name] for name in names]


def _names(table: Mapping[str, Any], key: str) -> list[DeviceName]:
    value = table[key]
    is_list = isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    if not isinstance(value, str) and not is_list:
        raise ValueError(f"{key} is {value!r}, expected a list of devices such as 'GPU:0-3'")
    return parse_devices(value)


def _entries(path: Path, key: str, tables: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry of an array of tables, and its location."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{key} is {tables!r}, expected entries [[{key}]]")
    yield from ((f"{path}, [[{key}]] number {number}", table) for number, table in enumerate(tables, start=1))


def _check_keys(table: Mapping[str, Any], *, required: Collection[str], optional: Collection[str]) -> None:
    keys = sorted({*required, *optional})
    for key in table:
        if key not in keys:
            close = get_close_matches(key, keys, n=1)
            hint = f"did you mean {close[0]}?" if close else f"keys: {', '.join(keys)}"
            raise ValueError(f"unknown key {key!r}; {hint}")
    missing = [key for key in keys if key in required and key not in table]
    if missing:
        raise ValueError(f"missing key{'s' if len(missing) > 1 else ''} {', '.join(missing)}")


def _task(name: DeviceName) -> tuple[str, int, int]:
    return name.job, name.replica, name.task


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Add the location in the file to errors within the block."""
    try:
        yield
    except UnknownHardware as error:
        raise UsageError(str(error), where=where, help=SHOW_ALL) from error
    except ValueError as error:
        raise UsageError(str(error), where=where) from error
    except UsageError as error:
        error.where = error.where or where
        raise
