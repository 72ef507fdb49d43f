"""The boxes of layers: one for each, or folded: blocks that repeat, and chains."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from partitioner.ir.plan import PlannedEdge, PlannedLayer
from partitioner.ir.units import format_bytes
from partitioner.report.fold import Repeat, chains, common_beginning, repeats
from partitioner.report.picture import Arrow, Box, escaped, merged_arrows

INPUT_CLASS = "InputLayer"
_MAX_SINGLE_BOXES = 40
_MAX_KINDS = 4
_NUMBER = re.compile(r"_?\d+(?=/|$)")


class Detail(StrEnum):
    """How much of the model a picture of layers shows.

    `layers`: a box per layer. `chains`: layers that follow each other on one device share a box. `auto`: for more than
    40 layers blocks that repeat share a box, and then chains do.
    """

    AUTO = "auto"
    LAYERS = "layers"
    CHAINS = "chains"


def layer_range(names: Iterable[str], *, max_names: int) -> str:
    """All names when there are at most `max_names`, else `first .. last (5 layers)`."""
    listed = list(names)
    if len(listed) <= max_names:
        return ", ".join(listed)
    return f"{listed[0]} .. {listed[-1]} ({len(listed)} layers)"


def layer_runs(names: Iterable[str], order: Sequence[str], *, max_runs: int, max_names: int) -> str:
    """Layers as ranges of `order`, the layers of the whole model: a range leaves no layer out.

    At most `max_runs` ranges are written, the longest ones, in order; the rest is counted.
    """
    position = {name: index for index, name in enumerate(order)}
    runs: list[list[str]] = []
    for name in sorted(names, key=lambda name: position.get(name, len(order))):
        if runs and position.get(name, -2) == position.get(runs[-1][-1], -2) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    shown = sorted(range(len(runs)), key=lambda index: (-len(runs[index]), index))[:max_runs]
    text = ", ".join(layer_range(runs[index], max_names=max_names) for index in sorted(shown))
    left = sum(len(run) for index, run in enumerate(runs) if index not in shown)
    return f"{text} and {left} more" if left else text


def layer_boxes(
    layers: Sequence[PlannedLayer],
    edges: Iterable[PlannedEdge],
    *,
    detail: Detail | str = Detail.AUTO,
    show_shapes: bool = True,
    stages: Mapping[str, int] | None = None,
) -> tuple[tuple[Box, ...], tuple[Arrow, ...]]:
    """The boxes and arrows of layers, in the plan's order of layers.

    Args:
        layers: The placed layers.
        edges: Tensors from layer to layer; several between two boxes are one arrow with their total.
        detail: How much to show.
        show_shapes: Whether boxes show output shapes.
        stages: The stage of each layer, by name.

    Raises:
        ValueError: `detail` is unknown, two layers share a name, or an edge names an unknown layer.
    """
    detail = Detail(detail)
    number = {layer.name: index for index, layer in enumerate(layers)}
    if len(number) != len(layers):
        raise ValueError("two layers of the plan share a name")
    arrows = _arrows(edges, number)
    sources: list[list[int]] = [[] for _ in layers]
    for arrow in sorted(arrows, key=lambda arrow: arrow.source):
        sources[arrow.target].append(arrow.source)
    places = [
        (layer.device, (stages or {}).get(layer.name), index if layer.class_name == INPUT_CLASS else None)
        for index, layer in enumerate(layers)
    ]
    folds = detail is Detail.AUTO and len(layers) > _MAX_SINGLE_BOXES
    kinds = [
        (place, layer.class_name, layer.output_shape, layer.parameter_bytes)
        for place, layer in zip(places, layers, strict=True)
    ]
    found = repeats(kinds, sources, [layer.name for layer in layers]) if folds else []
    groups = [*found, *_runs(places, sources, found, folds=folds or detail is Detail.CHAINS)]
    groups.sort(key=lambda group: group.start if isinstance(group, Repeat) else group[0])
    boxes, box_of = [], [0] * len(layers)
    for index, group in enumerate(groups):
        nodes = range(group.start, group.end) if isinstance(group, Repeat) else group
        for node in nodes:
            box_of[node] = index
        blocks = [[layers[node] for node in block] for block in group.blocks] if isinstance(group, Repeat) else []
        stage = (stages or {}).get(layers[nodes[0]].name, -1)
        boxes.append(_box([layers[node] for node in nodes], blocks, show_shapes, stage))
    return tuple(boxes), merged_arrows(arrows, box_of)


def outputs_of(boxes: Sequence[Box], arrows: Iterable[Arrow]) -> tuple[int, ...]:
    """Numbers of the boxes that nothing reads, inputs aside."""
    sources = {arrow.source for arrow in arrows}
    return tuple(index for index, box in enumerate(boxes) if index not in sources and not box.is_pale)


def counted(kinds: Iterable[str]) -> str:
    """How many there are of each: `3 Conv2D, ReLU`; of many kinds the first ones."""
    counts = Counter(kind for kind in kinds if kind)
    texts = [kind if count == 1 else f"{count} {kind}" for kind, count in counts.items()]
    left = f", {len(texts) - _MAX_KINDS} other kinds" if len(texts) > _MAX_KINDS + 1 else ""
    return ", ".join(texts[:_MAX_KINDS] if left else texts) + left


def blocks_title(blocks: Sequence[Sequence[str]]) -> str:
    """What blocks are called: `2 x encoder_layer` for the paths below `encoder_layer_0` and `encoder_layer_1`.

    Without such a path it is the range of their layers without numbers: `2 x conv2d .. add`; layers by themselves that
    have different names are a range: `query .. value (3 layers)`.
    """
    bases = {_common(block) for block in blocks}
    base = bases.pop() if len(bases) == 1 else ""
    if not base and len(blocks[0]) == 1:
        return layer_range([name for (name,) in blocks], max_names=1)
    ends = [_NUMBER.sub("", name) for name in (blocks[0][0], blocks[0][-1])]
    return f"{len(blocks)} x {base or ' .. '.join(ends)}"


def _common(names: Sequence[str]) -> str:
    """What all names begin with, up to a `/` or `_`, without the number at its end."""
    start = common_beginning(names)
    if len(names) > 1:
        start = start[: max(start.rfind("/"), start.rfind("_")) + 1]
    return _NUMBER.sub("", start.rstrip("/_"))


def _arrows(edges: Iterable[PlannedEdge], number: Mapping[str, int]) -> list[Arrow]:
    arrows = []
    for edge in edges:
        if unknown := {edge.source, edge.target} - number.keys():
            raise ValueError(f"an edge of the plan names the unknown layer {min(unknown)!r}")
        if edge.source != edge.target:
            ends = {"source": number[edge.source], "target": number[edge.target]}
            arrows.append(Arrow(**ends, size_bytes=edge.size_bytes, gradient_bytes=edge.gradient_bytes))
    return arrows


def _runs(
    places: Sequence[object], sources: Sequence[Sequence[int]], found: Sequence[Repeat], *, folds: bool
) -> list[list[int]]:
    """The layers outside of repeated blocks: chains of them, or each by itself."""
    inside = {node for repeat in found for node in range(repeat.start, repeat.end)}
    apart = [node if node in inside else place for node, place in enumerate(places)]
    runs = chains(apart, sources) if folds else [[node] for node in range(len(places))]
    return [run for run in runs if run[0] not in inside]


def _box(layers: Sequence[PlannedLayer], blocks: Sequence[Sequence[PlannedLayer]], shapes: bool, stage: int) -> Box:
    names = [layer.name for layer in layers]
    kinds = [layer.class_name for layer in blocks[0] if layer.class_name] if blocks else []
    facts = []
    title, kind = layer_range(names, max_names=1), ""
    if blocks:
        title = blocks_title([[layer.name for layer in block] for block in blocks])
        if len(blocks[0]) > 1:
            facts.append(f"each {len(blocks[0])} layers: {escaped(counted(kinds))}")
            facts.append(escaped(f"{names[0]} .. {names[-1]}"))
        else:
            kind = counted(kinds)
    elif len(layers) == 1:
        kind = layers[0].class_name
    elif classes := counted(layer.class_name for layer in layers):
        facts.append(escaped(classes))
    if shapes and layers[-1].output_shape:
        facts.append(f"output shape <b>{escaped(layers[-1].output_shape)}</b>")
    if parameter_bytes := sum(layer.parameter_bytes for layer in layers):
        facts.append(f"parameters <b>{format_bytes(parameter_bytes)}</b>")
    return Box(
        title=title,
        kind=kind,
        facts=tuple(facts),
        members=tuple(names),
        device=layers[0].device,
        stage=stage,
        is_pale=layers[0].class_name == INPUT_CLASS,
    )
