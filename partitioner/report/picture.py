"""The contents of a picture of a placement, of a model or a cost graph."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from partitioner.ir.plan import PlannedEdge, PlannedLayer

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A device.

    Attributes:
        device: Its canonical name.
        title: Text at the top of its frame, in Graphviz's HTML.
        facts: Lines below the title, in the same format.
    """

    device: str
    title: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A placement to draw.

    Attributes:
        heading: Lines above the picture, in Graphviz's HTML.
        frames: The devices in use.
        layers: The placed layers.
        edges: Tensors from layer to layer.
        returns: Whether the flow comes back to a device that it has left.
    """

    heading: tuple[str, ...]
    frames: tuple[Frame, ...]
    layers: tuple[PlannedLayer, ...]
    edges: tuple[PlannedEdge, ...]
    returns: bool = False


def escaped(text: str) -> str:
    """Escaped for an HTML label, where Graphviz still expands backslashes (`\\N` is the node's name)."""
    return html.escape(UNPRINTABLE.sub("\ufffd", text)).replace("\\", "\\\\").replace("\n", " ")
