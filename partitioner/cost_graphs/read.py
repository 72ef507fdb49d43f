"""Read cost graphs from files: workloads of msr-fiddle (`.json`) and layer profiles of PipeDream (`graph.txt`).

Workloads: A. Phanishayee, D. Narayanan, J. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020, github.com/msr-fiddle/dnn-partitioning. Profiles: D. Narayanan et al., "PipeDream: Generalized
Pipeline Parallelism for DNN Training", SOSP 2019, github.com/msr-fiddle/pipedream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from partitioner.cost_graphs.graph import CostGraph, CostNode, CostValue
from partitioner.errors import ModelError
from partitioner.ir.json import decoded

_TOP = {"maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges"}
_MUST_NODE = {"id", "cpuLatency", "fpgaLatency"}
_NODE = {*_MUST_NODE, "name", "supportedOnFpga", "isBackwardNode", "colorClass", "size", "layerId"}
_MUST_EDGE = {"sourceId", "destId", "cost"}
_EDGE = {*_MUST_EDGE, "size"}
_PROFILE_NODE = re.compile(r"(?P<id>\S+) -- (?P<description>.*) -- (?P<figures>[^-]*=.*)")
_HOST_SECONDS_PER_BYTE = 1e-9  # 1 GB/s


def read_cost_graph(path: str) -> CostGraph:
    """Read a workload or a profile.

    Raises:
        ModelError: The file cannot be read, is neither, has unknown keys, or is not a valid cost graph.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read the cost graph {path!r}: {error}") from error
    try:
        return _profile(text) if path.endswith(".txt") else _workload(text)
    except (ValueError, KeyError, TypeError) as error:
        first, *notes = str(error.args[0] if error.args else error).splitlines() or [type(error).__name__]
        raise ModelError(
            f"{Path(path).name} is not a sound cost graph: {first}", where=path, notes=notes, help="correct the file"
        ) from error


def _workload(text: str) -> CostGraph:
    try:
        # Python's own reader would accept NaN, and keep the last of two equal keys.
        work = decoded(text, dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"the JSON cannot be read ({error})") from error
    _check_keys("the workload", work, _TOP, {"nodes", "edges"})
    for number, node in enumerate(work["nodes"]):
        _check_keys(f"node {node['id'] if _has(node, 'id') else f'number {number}'}", node, _NODE, _MUST_NODE)
    costs: dict[str, tuple[float, float]] = {}
    targets: dict[str, dict[str, None]] = {}
    for number, edge in enumerate(work["edges"]):
        _check_keys(f"edge number {number}", edge, _EDGE, _MUST_EDGE)
        name = f"the edge {edge['sourceId']} -> {edge['destId']}"
        source, cost = str(edge["sourceId"]), _number(name, edge, "cost")
        size = _number(name, edge, "size") if _has(edge, "size") else 0.0
        targets.setdefault(source, {})[str(edge["destId"])] = None
        if costs.setdefault(source, (cost, size))[0] != cost:
            raise ValueError(
                f"{name} costs {cost}, another edge from {source} costs {costs[source][0]}; "
                "the value of a node has a single cost"
            )
    return CostGraph(
        nodes=tuple(_workload_node(node) for node in work["nodes"]),
        values=tuple(
            CostValue(source=source, targets=tuple(to), cost=costs[source][0], size_bytes=costs[source][1])
            for source, to in targets.items()
        ),
        accelerators=_count(work, "maxFPGAs"),
        cpus=_count(work, "maxCPUs"),
        memory_bytes=_number("the workload", work, "maxSizePerFPGA") if _has(work, "maxSizePerFPGA") else None,
    )


def _workload_node(node: dict[str, Any]) -> CostNode:
    name = f"node {node['id']}"
    return CostNode(
        id=str(node["id"]),
        description=str(node.get("name") or ""),
        accelerator_cost=_number(name, node, "fpgaLatency"),
        cpu_cost=_number(name, node, "cpuLatency"),
        needs_cpu=not node.get("supportedOnFpga", True),
        memory_bytes=_number(name, node, "size") if _has(node, "size") else 0.0,
        is_backward=bool(node.get("isBackwardNode", False)),
        group=str(node["colorClass"]) if _has(node, "colorClass") else None,
    )


def _number(where: str, table: dict[str, Any], key: str) -> float:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} has {key} {value!r}; expected a number")
    return value


def _count(work: dict[str, Any], key: str) -> int | None:
    value = work.get(key)
    if value is not None and (isinstance(value, bool) or value != int(value)):
        raise ValueError(f"the workload has {key} {value!r}; expected a whole number")
    return None if value is None else int(value)


def _has(table: Any, key: str) -> bool:
    return isinstance(table, dict) and table.get(key) is not None


def _check_keys(where: str, table: Any, allowed: set[str], needed: Iterable[str]) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is {table!r}; expected an object")
    for key in table:
        if key not in allowed:
            close = get_close_matches(key, allowed, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{where} has the unknown key {key!r}{meant}")
    missing = sorted(set(needed) - set(table))
    if missing:
        raise ValueError(f"{where} has no {', '.join(missing)}")


def _profile(text: str) -> CostGraph:
    """Read a profile: lines `ID -- DESCRIPTION -- FIGURES`, and edges `TAB ID -- ID`.

    A profile has times for a single kind of device, so a CPU gets the same costs as an accelerator. A value is the
    activation, moved forward, and its gradient of equal size, moved back, at 1 GB/s. Nodes named `Input` are data
    loading: they cost nothing.
    """
    nodes: list[CostNode] = []
    sizes: dict[str, float] = {}
    targets: dict[str, dict[str, None]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("\t"):
            source, dash, target = line.strip().partition(" -- ")
            if not dash:
                raise ValueError(f"line {number} is no edge `ID -- ID`: {line.strip()[:60]!r}")
            targets.setdefault(source, {})[target] = None
        elif line.strip():
            node, size = _profile_node(number, line)
            nodes.append(node)
            sizes[node.id] = size
    return CostGraph(
        nodes=tuple(nodes),
        values=tuple(
            CostValue(
                source=source,
                targets=tuple(to),
                cost=2 * sizes.get(source, 0.0) * _HOST_SECONDS_PER_BYTE * 1000,
                size_bytes=sizes.get(source, 0.0),
            )
            for source, to in targets.items()
        ),
    )


def _profile_node(number: int, line: str) -> tuple[CostNode, float]:
    match = _PROFILE_NODE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"line {number} is no node `ID -- DESCRIPTION -- NAME=FIGURE, ...`: {line.strip()[:60]!r}")
    figures = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", match["figures"]))
    where = f"line {number} (node {match['id']})"
    keys = {"forward_compute_time", "backward_compute_time", "activation_size", "parameter_size", "stage_id"}
    _check_keys(where, figures, keys, ["forward_compute_time", "backward_compute_time", "activation_size"])
    try:
        # An activation may be several tensors: [a; b].
        read = {key: sum(map(float, text.strip("[]").split(";"))) for key, text in figures.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    is_input = match["description"].startswith("Input")
    cost = 0.0 if is_input else read["forward_compute_time"] + read["backward_compute_time"]
    node = CostNode(
        id=match["id"],
        description=match["description"],
        accelerator_cost=cost,
        cpu_cost=cost,
        memory_bytes=read.get("parameter_size", 0.0),
    )
    return node, 0.0 if is_input else read["activation_size"]
