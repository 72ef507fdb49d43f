"""What is asked of a placement besides memory: which devices things may be on, and which things share one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from partitioner.ir.devices import short_name


class RequirementKind(StrEnum):
    """Keep what matches on a device, keep it off some devices, or keep all of it together."""

    PIN = "pin"
    FORBID = "forbid"
    COLOCATE = "colocate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A requirement as asked for.

    Attributes:
        kind: What is required.
        pattern: A regular expression over layer paths and op names, or over the nodes of a cost graph.
        devices: Canonical names: the one of a pin, those that are forbidden, none to colocate.
    """

    kind: RequirementKind
    pattern: str
    devices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """In words: `pin encoder=GPU:0`."""
        named = ",".join(map(short_name, self.devices))
        return f"{self.kind} {self.pattern}" + (f"={named}" if named else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConstraint:
    """A requirement as it bears on the ops of one graph, or on the nodes of a cost graph.

    Attributes:
        text: What it comes from, for people.
        ops: What it is about.
        devices: Indices of the devices that each of these may take; None for any.
        together: Whether all of these share a device.
    """

    text: str
    ops: tuple[str, ...]
    devices: frozenset[int] | None = None
    together: bool = False
