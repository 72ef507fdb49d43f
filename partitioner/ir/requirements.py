"""Requirements on a placement besides memory: allowed devices of ops, and ops that share a device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from partitioner.ir.devices import short_name


class RequirementKind(StrEnum):
    """Pin matching ops to a device, forbid them some devices, or keep them on one device."""

    PIN = "pin"
    FORBID = "forbid"
    COLOCATE = "colocate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A requirement as the user gave it.

    Attributes:
        kind: Pin, forbid or colocate.
        pattern: A regular expression over layer paths and op names, or over the nodes of a cost graph.
        devices: Canonical names: the pinned device, the forbidden devices, or none for colocation.
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
    """A requirement resolved to the ops of one graph, or to the nodes of a cost graph.

    Attributes:
        text: The requirement, for people.
        ops: The ops or nodes that it constrains.
        devices: Indices of the devices that each of these may take; None for any.
        together: Whether all of these share a device.
    """

    text: str
    ops: tuple[str, ...]
    devices: frozenset[int] | None = None
    together: bool = False
