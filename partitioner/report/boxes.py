"""Contents of the picture: layers folded into boxes, tensors into arrows. Independent of the drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partitioner.ir.plan import PlannedEdge, PlannedLayer

INPUT_CLASS = "InputLayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One layer, or a run of layers that follow each other on one device."""

    layers: tuple[PlannedLayer, ...]

    @property
    def device(self) -> str:
        """Canonical name of the device; empty when the plan names none."""
        return self.layers[0].device

    @property
    def title(self) -> str:
        """The layer's name, or the first and the last of several."""
        return layer_range([layer.name for layer in self.layers], max_names=1)

    @property
    def classes(self) -> str:
        """The layer's class, or how many there are of each: `3 Conv2D, ReLU`."""
        if len(self.layers) == 1:
            return self.layers[0].class_name
        counts = Counter(layer.class_name for layer in self.layers if layer.class_name)
        return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())

    @property
    def output_shape(self) -> str:
        """Shape of the box's output: the last layer's output."""
        return self.layers[-1].output_shape

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters of all layers in the box."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def is_input(self) -> bool:
        """Whether the box is an input of the model."""
        return self.layers[0].class_name == INPUT_CLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Bytes from box number `source` to box number `target`, and of the gradient back."""

    source: int
    target: int
    size_bytes: int
    gradient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """The picture, in the plan's order of layers."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """Numbers of the boxes that nothing reads, inputs aside."""
        sources = {arrow.source for arrow in self.arrows}
        return tuple(i for i, box in enumerate(self.boxes) if i not in sources and not box.is_input)


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


def draw_boxes(layers: Sequence[PlannedLayer], edges: Sequence[PlannedEdge], *, fold: bool) -> Boxes:
    """The boxes and arrows of a placement.

    With `fold`, a layer joins the box of the layer before it when both are on one device, nothing else reads the first
    and the second reads nothing else. Several tensors between two boxes are one arrow with their total.

    Raises:
        ValueError: Two layers share a name, or an edge names an unknown layer.
    """
    names = {layer.name for layer in layers}
    if len(names) != len(layers):
        raise ValueError("two layers of the plan share a name")
    edges = [edge for edge in edges if edge.source != edge.target]
    for edge in edges:
        if unknown := {edge.source, edge.target} - names:
            raise ValueError(f"an edge of the plan names the unknown layer {min(unknown)!r}")
    runs = _chains(layers, edges) if fold else [[layer] for layer in layers]
    number = {layer.name: index for index, run in enumerate(runs) for layer in run}
    totals: dict[tuple[int, int], tuple[int, int]] = {}
    for edge in edges:
        ends = number[edge.source], number[edge.target]
        if ends[0] != ends[1]:
            size_bytes, gradient_bytes = totals.get(ends, (0, 0))
            totals[ends] = size_bytes + edge.size_bytes, gradient_bytes + edge.gradient_bytes
    return Boxes(
        boxes=tuple(Box(layers=tuple(run)) for run in runs),
        arrows=tuple(
            Arrow(source=source, target=target, size_bytes=size_bytes, gradient_bytes=gradient_bytes)
            for (source, target), (size_bytes, gradient_bytes) in sorted(totals.items())
        ),
    )


def _chains(layers: Iterable[PlannedLayer], edges: Iterable[PlannedEdge]) -> list[list[PlannedLayer]]:
    before: dict[str, set[str]] = {layer.name: set() for layer in layers}
    after: dict[str, set[str]] = {layer.name: set() for layer in layers}
    for edge in edges:
        before[edge.target].add(edge.source)
        after[edge.source].add(edge.target)
    runs: list[list[PlannedLayer]] = []
    open_run: dict[str, list[PlannedLayer]] = {}  # by the name of the run's last layer
    for layer in layers:
        previous = next(iter(before[layer.name])) if len(before[layer.name]) == 1 else ""
        run = open_run.get(previous)
        if run and len(after[previous]) == 1 and _may_share_a_box(run[-1], layer):
            del open_run[previous]
            run.append(layer)
        else:
            run = [layer]
            runs.append(run)
        open_run[layer.name] = run
    return runs


def _may_share_a_box(first: PlannedLayer, second: PlannedLayer) -> bool:
    return first.device == second.device and INPUT_CLASS not in (first.class_name, second.class_name)
