"""The plan of a cost graph, and the plan.json that holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partitioner.cost_graphs.first_document import fields_of_today, is_first_document
from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName
from partitioner.ir.json import decoded, from_json, to_json
from partitioner.ir.plan import SCHEMA as MODEL_SCHEMA
from partitioner.ir.plan import SolverInfo, WhatIf
from partitioner.ir.requirements import Requirement
from partitioner.spelling import as_python

SCHEMA = "partition-cost-graph-plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGraphInfo:
    """The cost graph that was planned.

    Attributes:
        name: Its name in the report.
        source: The file it was read from.
        fingerprint: Fingerprint of its contents.
        num_nodes: Number of nodes.
        num_values: Number of values, each made by a node and needed by others.
        unit: Unit of its costs: `ms` or `s`.
    """

    name: str
    source: str
    fingerprint: str
    num_nodes: int
    num_values: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDevice:
    """A device of the plan; `memory_bytes` is its limit, None if it has none."""

    name: str
    kind: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The nodes of a device.

    Attributes:
        device: Its canonical name.
        nodes: Ids of its nodes.
        compute: Load of computing, in the graph's unit.
        transfer: Load of moving values in and out, in the graph's unit.
        memory_bytes: Memory of its nodes.
        send_bytes: Bytes that leave it.
    """

    device: str
    nodes: tuple[str, ...]
    compute: float
    transfer: float
    memory_bytes: int
    send_bytes: int

    @property
    def load(self) -> float:
        """Compute and transfer; the largest load of all devices is the objective."""
        return self.compute + self.transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBaseline:
    """A baseline of a plan: its name, its largest load, and whether it is allowed."""

    name: str
    load: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An edge of the graph; `size_bytes` are moved along it if its ends are on different devices."""

    source: str
    target: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGraphPlan:
    """A placement of every node of a cost graph, with its largest load and a proved bound.

    Attributes:
        graph: The cost graph.
        contiguous: Whether each device had to get a single piece of a chain.
        devices: The devices to plan for.
        pieces: The nodes of each used device; in the order of the chain where pieces are contiguous.
        placement: Device by node.
        solver: Objective and lower bound in the graph's unit.
        baselines: Placements that the plan is compared with.
        requirements: Pins, forbidden devices and colocation of nodes.
        descriptions: The file's description of nodes, by id.
        edges: Bytes from node to node.
        what_if: Gains of better machines.
        notes: Notes for the reader.
        versions: Versions of the packages that made it.

    Raises:
        ValueError: The schema is a different schema, a device has no name of one, or a node is placed on a device that
            is not listed.
    """

    graph: CostGraphInfo
    contiguous: bool
    devices: tuple[GraphDevice, ...]
    pieces: tuple[Piece, ...]
    placement: dict[str, str]
    solver: SolverInfo
    baselines: tuple[LoadBaseline, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    descriptions: dict[str, str] = field(default_factory=dict)
    edges: tuple[Transfer, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema!r}, this version reads {SCHEMA!r}")
        names = {device.name for device in self.devices}
        for name in names:
            DeviceName.parse(name)
        if strangers := sorted({*self.placement.values(), *(piece.device for piece in self.pieces)} - names):
            raise ValueError(f"nodes are on devices that `devices` does not list: {', '.join(strangers)}")

    @property
    def source(self) -> str:
        """The file of the cost graph."""
        return self.graph.source

    def to_json(self) -> str:
        """The text of plan.json: sorted keys, two spaces per level."""
        return to_json(self, indent=2)

    def save(self, path: str | Path) -> None:
        """Write plan.json to `path`."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostGraphPlan:
        """Read the plan that `save`, or an earlier version, wrote to `path`.

        Raises:
            UsageError: It is a document of another kind, or of an earlier version with missing fields.
            msgspec.DecodeError: It is no document, or a field is missing or wrong.
        """
        text = Path(path).read_bytes()
        document = decoded(text)
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == SCHEMA:
            return from_json(text, cls)
        if not is_first_document(document):
            raise UsageError(
                f"{path} is no plan of a cost graph: its schema is {schema!r}, expected {SCHEMA!r}",
                help=f"partition show {path}" if schema == MODEL_SCHEMA else None,
            )
        try:
            text_of_today = to_json(fields_of_today(document))
        except (KeyError, TypeError) as error:
            raise UsageError(f"{path} is no whole plan of a cost graph: {type(error).__name__} {error}") from error
        return from_json(text_of_today, cls)

    def to_text(
        self,
        files: Sequence[str | Path] = (),
        *,
        verbose: bool = False,
        spell: Callable[[str], str] = as_python,
    ) -> str:
        """The report that the command line prints.

        Args:
            files: Paths to list at its end.
            verbose: Whether to list the nodes of each device.
            spell: How arguments are named: `as_python` or `as_flags` of `partitioner.spelling`.
        """
        from partitioner.cost_graphs.report import render

        return spell(render(self, files=files, verbose=verbose))

    def to_dot(self, path: str | Path | None = None, **options: Any) -> str:
        """The placement as a DOT picture, written to `path` if given.

        Options are those of `partitioner.cost_graphs.report.to_dot`: `rankdir` and `detail`.
        """
        from partitioner.cost_graphs.report import to_dot

        text = to_dot(self, **options)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_svg(self, path: str | Path, **options: Any) -> None:
        """The same picture as SVG.

        Raises:
            UsageError: Neither pygraphviz nor the `dot` program is installed.
        """
        from partitioner.report.images import write_image

        write_image(self.to_dot(**options), path, "svg")

    def to_png(self, path: str | Path, **options: Any) -> None:
        """The same picture as PNG.

        Raises:
            UsageError: Neither pygraphviz nor the `dot` program is installed.
        """
        from partitioner.report.images import write_image

        write_image(self.to_dot(**options), path, "png")
