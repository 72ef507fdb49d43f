"""The hardware catalogue as tables for people and as JSON for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cost_models.catalogue import Catalogue
from cost_models.hardware import Device
from partitioner.ir.units import format_bandwidth, format_seconds

_DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8")


def render_catalogue(catalogue: Catalogue) -> str:
    """Devices, links and hosts as tables, with the dates of their sources; lines are as long as they have to be."""
    out = io.StringIO()
    console = Console(
        file=out, width=400, height=25, force_terminal=False, color_system=None, markup=False, emoji=False
    )
    tables = (
        ("devices: dense TFLOP/s, all of the memory, peak memory bandwidth", _devices(catalogue.devices.values())),
        ("links: one direction", _links(catalogue)),
        ("hosts, as a topology by name: NAME, or '8x NAME' for eight of them", _hosts(catalogue)),
    )
    for title, table in tables:
        console.print(Text(title))
        console.print(table)
        console.print()
    console.print(Text("dates are those of the sources, which the same list as JSON names"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def catalogue_json(catalogue: Catalogue) -> str:
    """The whole catalogue with its sources: units in the names, keys in order."""
    tables = {"devices": catalogue.devices, "links": catalogue.links, "hosts": catalogue.hosts}
    entries = {name: [asdict(entry) for _, entry in sorted(table.items())] for name, table in tables.items()}
    return json.dumps(entries, indent=2, sort_keys=True) + "\n"


def _devices(devices: Iterable[Device]) -> RenderableType:
    table = _table("name", *(f">{dtype}" for dtype in _DTYPES), ">memory", ">bandwidth", ">launch", "dates", "title")
    for device in devices:
        table.add_row(
            Text(device.name),
            *(_teraflops(device.peak_flops.get(dtype)) for dtype in _DTYPES),
            f"{device.memory_bytes / 2**30:.0f} GiB",
            format_bandwidth(device.memory_bandwidth_bytes_per_second),
            format_seconds(device.launch_overhead_seconds),
            _dates(device.date, device.launch_date),
            Text(device.title),
        )
    return table


def _links(catalogue: Catalogue) -> RenderableType:
    table = _table("name", ">bandwidth", ">latency", "dates")
    for link in catalogue.links.values():
        table.add_row(
            Text(link.name),
            format_bandwidth(link.bandwidth_bytes_per_second),
            format_seconds(link.latency_seconds),
            _dates(link.date, link.latency_date),
        )
    return table


def _hosts(catalogue: Catalogue) -> RenderableType:
    table = _table("name", ">devices", "of", "within", "between hosts", "date", "title")
    for host in catalogue.hosts.values():
        table.add_row(
            Text(host.name),
            f"{host.num_devices}",
            Text(host.device),
            Text("+".join(host.within)),
            Text("+".join(host.between)),
            host.date,
            Text(host.title),
        )
    return table


def _teraflops(flops: float | None) -> str:
    return "" if flops is None else f"{flops / 1e12:.4g}" if flops < 1e15 else f"{flops / 1e12:,.0f}"


def _dates(date: str, other: str) -> str:
    return date if other in ("", date) else f"{date}, {other}"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="none")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table
