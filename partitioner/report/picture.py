"""The contents of a picture: frames, boxes and arrows, whatever the boxes stand for. Independent of the drawing."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A device.

    Attributes:
        device: Its canonical name.
        number: Its place among all devices in use, which its colour goes by.
        title: Text at the top of its frame, in Graphviz's HTML.
        facts: Lines below the title, in the same format.
    """

    device: str
    number: int
    title: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stage, a layer, an op, or several of them.

    Attributes:
        title: Its name, in bold.
        kind: What follows the name in brackets; may be empty.
        facts: Lines below the name, in Graphviz's HTML.
        members: Names of what it stands for.
        device: Canonical name of its device; empty when the plan names none.
        stage: Index of its stage; -1 when the plan names none.
        is_pale: Whether it does no work here: an input of the model, or a stage that is not shown.
    """

    title: str
    kind: str = ""
    facts: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    device: str = ""
    stage: int = -1
    is_pale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Bytes from box number `source` to box number `target`, and of the gradient back."""

    source: int
    target: int
    size_bytes: int = 0
    gradient_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A placement to draw.

    Attributes:
        heading: Lines above the picture, in Graphviz's HTML.
        frames: The devices in use.
        boxes: The boxes, in a fixed order.
        arrows: Tensors from box to box.
        outputs: Numbers of the boxes that make an output of the model.
        links: Name of the link from one device to another, where it is known.
        returns: Whether the flow comes back to a device that it has left.
        is_framed: Whether devices have frames; else boxes have their colours only.
    """

    heading: tuple[str, ...]
    frames: tuple[Frame, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    outputs: tuple[int, ...] = ()
    links: dict[tuple[str, str], str]
    returns: bool = False
    is_framed: bool = True


def merged_arrows(arrows: Iterable[Arrow], group: Sequence[int]) -> tuple[Arrow, ...]:
    """Arrows between groups of boxes; `group` has the number of each box's group.

    What a box sends to several boxes of a group is one tensor that they share; their gradients are one each.
    """
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for arrow in arrows:
        size, back = pairs.get((arrow.source, arrow.target), (0, 0))
        pairs[arrow.source, arrow.target] = size + arrow.size_bytes, back + arrow.gradient_bytes
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    for (source, target), (size, back) in pairs.items():
        largest, total = sent.get((source, group[target]), (0, 0))
        sent[source, group[target]] = max(largest, size), total + back
    merged: dict[tuple[int, int], tuple[int, int]] = {}
    for (source, target), (size, back) in sent.items():
        if group[source] != target:
            sizes, backs = merged.get((group[source], target), (0, 0))
            merged[group[source], target] = sizes + size, backs + back
    return tuple(
        Arrow(source=source, target=target, size_bytes=size, gradient_bytes=back)
        for (source, target), (size, back) in sorted(merged.items())
    )


def escaped(text: str) -> str:
    """Escaped for an HTML label, where Graphviz still expands backslashes (`\\N` is the node's name)."""
    return html.escape(UNPRINTABLE.sub("\ufffd", text)).replace("\\", "\\\\").replace("\n", " ")
