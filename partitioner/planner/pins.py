"""Pins: `regex=DEVICE` keeps the layers or ops that a pattern matches on a device."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName
from partitioner.ir.op_graph import OpGraph


def pinned_ops(graph: OpGraph, pins: Mapping[str, str], devices: Sequence[DeviceName]) -> dict[str, int]:
    """Device index of every op that a pin matches.

    A pattern must match all of a layer path (`encoder/dense`), of a layer around it (`encoder`), or of an op
    name.

    Raises:
        UsageError: Listing every pin whose pattern is no regular expression, matches nothing, or whose
            device is none or not among `devices`; or two pins that send one op to different devices.
    """
    problems: list[str] = []
    found: dict[str, tuple[int, str]] = {}
    prefixes = {layer: _and_parents(layer) for layer in {op.layer for op in graph.ops}}
    for pattern, text in pins.items():
        try:
            device = DeviceName.parse(text)
        except ValueError as error:
            problems.append(f"{pattern}={text}: {error}")
            continue
        if device not in devices:
            known = ", ".join(d.short for d in devices)
            problems.append(f"{pattern}={text}: {device.short} is not among the devices ({known})")
            continue
        try:
            regex = re.compile(pattern)
        except re.error as error:
            problems.append(f"{pattern}={text}: not a regular expression: {error}")
            continue
        layers = {layer for layer, names in prefixes.items() if any(regex.fullmatch(name) for name in names)}
        matched = [op.name for op in graph.ops if op.layer in layers or regex.fullmatch(op.name)]
        if not matched:
            known_names = [layer.path for layer in graph.layers]
            close = difflib.get_close_matches(pattern, known_names, n=4, cutoff=0.3) or known_names[:4]
            problems.append(f"{pattern}={text}: matches no layer and no op; near: {', '.join(close)}")
        for name in matched:
            index, by = found.setdefault(name, (devices.index(device), pattern))
            if index != devices.index(device):
                problems.append(f"{pattern}={text}: {graph.op[name].layer or name} is already pinned by {by!r}")
                break
    if problems:
        raise UsageError(
            f"{len(problems)} of {len(pins)} pins cannot be met",
            notes=problems,
            help="patterns match whole layer paths (re.fullmatch), e.g. --pin 'conv.*=GPU:0'",
        )
    return {name: index for name, (index, _) in found.items()}


def _and_parents(path: str) -> list[str]:
    parts = path.split("/") if path else []
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
