"""Which ops of a plan share a box: as few as it takes for a picture to have fewer than 100 boxes.

Graphviz lays out 100 boxes with the arrows of a training step in a second; with 185 it took more than a minute.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partitioner.ir.plan import PlanDocument
from partitioner.report.boxes import blocks_title
from partitioner.report.fold import repeats

MAX_BOXES = 100
_ORDER = "fbu"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGroup:
    """Ops of one stage, device and phase, as rows of the plan's `ops`.

    Attributes:
        rows: In an order of the flow.
        name: What they are called where they are of several layers: `12 x encoder_layer`.
    """

    rows: tuple[int, ...]
    name: str = ""


def op_groups(plan: PlanDocument, stage: int | None) -> list[OpGroup]:
    """The groups of the ops of one stage, or of all stages, in an order of the flow.

    As needed, the update ops of a layer share a group; an op joins the op that alone reads it; the ops of a layer share
    a group for each phase; blocks that repeat do; and then neighbours do.
    """
    rows = [row for row in _flow(plan) if stage in (None, plan.ops.stages[row])]
    groups = [OpGroup(rows=(row,)) for row in rows]
    for fold in (_updates, _into_readers, _by_layer, _repeated, _neighbours):
        if len(groups) < MAX_BOXES:
            break
        groups = fold(plan, groups)
    return groups


def layer_of(plan: PlanDocument, row: int) -> str:
    """Name of the layer of an op; empty for ops outside of all layers."""
    index = plan.ops.layers[row]
    return plan.layers[index].name if index >= 0 else ""


def _flow(plan: PlanDocument) -> list[int]:
    """Rows in a topological order: forward before backward before update where the graph leaves it open."""
    ops = plan.ops
    waits = [len(read) for read in ops.inputs]
    readers = _readers(ops.inputs)
    keys = [(_ORDER.index(phase), row) for row, phase in enumerate(ops.phases)]
    ready = [keys[row] for row, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, row = heapq.heappop(ready)
        order.append(row)
        for reader in readers[row]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, keys[reader])
    return order


def _readers(inputs: Sequence[Iterable[int]]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in inputs]
    for row, read in enumerate(inputs):
        for source in read:
            readers[source].append(row)
    return readers


@dataclass(frozen=True, slots=True)
class _Place:
    """What the ops of a group share."""

    stage: int
    device: str
    phase: str


def _places(plan: PlanDocument) -> list[_Place]:
    devices = [plan.placement[name] for name in sorted(plan.placement)]
    return list(map(_Place, plan.ops.stages, devices, plan.ops.phases))


def _updates(plan: PlanDocument, groups: Sequence[OpGroup]) -> list[OpGroup]:
    """The update ops of each layer, which are the same for every variable."""
    places = list(zip(_places(plan), plan.ops.layers, strict=True))
    rows = [row for group in groups for row in group.rows]
    return _joined([(places[row] if plan.ops.phases[row] == "u" else row, row) for row in rows])


def _into_readers(plan: PlanDocument, groups: Sequence[OpGroup]) -> list[OpGroup]:
    """Each op joins the only op that reads it, in the same layer and phase: nothing outside reads within a group."""
    readers = _readers(plan.ops.inputs)
    places = list(zip(_places(plan), plan.ops.layers, strict=True))
    root: dict[int, int] = {}
    rows = [row for group in groups for row in group.rows]
    for row in reversed(_flow(plan)):
        reader = readers[row][0] if len(readers[row]) == 1 else row
        root[row] = root.get(reader, row) if places[reader] == places[row] else row
    return _joined([(places[row] if plan.ops.phases[row] == "u" else root[row], row) for row in rows])


def _by_layer(plan: PlanDocument, groups: Sequence[OpGroup]) -> list[OpGroup]:
    places = list(zip(_places(plan), plan.ops.layers, strict=True))
    return _joined([(places[row], row) for group in groups for row in group.rows])


def _joined(keyed: Iterable[tuple[object, int]]) -> list[OpGroup]:
    rows: dict[object, list[int]] = {}
    for key, row in keyed:
        rows.setdefault(key, []).append(row)
    return [OpGroup(rows=tuple(members)) for members in rows.values()]


def _repeated(plan: PlanDocument, groups: Sequence[OpGroup]) -> list[OpGroup]:
    """Blocks of groups that repeat, within one stage, device and phase.

    Backward blocks read forward ones in reverse order: only what groups read of their own phase is compared.
    """
    groups = sorted(groups, key=lambda group: _along_layers(plan, group.rows[0]))
    number = {row: index for index, group in enumerate(groups) for row in group.rows}
    of_rows = _places(plan)
    places = [of_rows[group.rows[0]] for group in groups]
    kinds = []
    sources = []
    for index, group in enumerate(groups):
        counts = Counter(plan.ops.types[row] for row in group.rows)
        kinds.append((places[index], frozenset(counts.items())))
        read = {number[source] for row in group.rows for source in plan.ops.inputs[row] if source in number}
        sources.append(sorted(source for source in read - {index} if places[source].phase == places[index].phase))
    folded: list[OpGroup] = []
    done = 0
    of_groups = [layer_of(plan, group.rows[0]) for group in groups]
    for repeat in repeats(kinds, sources, of_groups):
        rows = tuple(row for block in repeat.blocks for index in block for row in groups[index].rows)
        names = [[of_groups[index] for index in block] for block in repeat.blocks]
        folded += groups[done : repeat.start]
        folded.append(OpGroup(rows=rows, name=blocks_title(names)))
        done = repeat.end
    return [*folded, *groups[done:]]


def _along_layers(plan: PlanDocument, row: int) -> tuple[int, int]:
    """Order of phases, and within one of the model's layers, backward ones from the last."""
    layer, phase = plan.ops.layers[row], plan.ops.phases[row]
    return _ORDER.index(phase), -layer if phase == "b" else layer


def _neighbours(plan: PlanDocument, groups: Sequence[OpGroup]) -> list[OpGroup]:
    """Groups of one stage, device and phase that follow each other, as many together as it takes."""
    places = _places(plan)
    lanes: dict[_Place, list[OpGroup]] = {}
    for group in groups:
        lanes.setdefault(places[group.rows[0]], []).append(group)
    together = -(-len(groups) // (MAX_BOXES - 1 - len(lanes))) if len(lanes) < MAX_BOXES - 1 else len(groups)
    folded = []
    for lane in lanes.values():
        for start in range(0, len(lane), together):
            part = lane[start : start + together]
            names = [part[0].name or layer_of(plan, part[0].rows[0]), part[-1].name or layer_of(plan, part[-1].rows[0])]
            rows = tuple(row for group in part for row in group.rows)
            folded.append(part[0] if len(part) == 1 else OpGroup(rows=rows, name=" .. ".join(dict.fromkeys(names))))
    return folded
