"""What a device that holds a part of the items needs at the least in a step in one piece: heads, work and tails.

An op starts once the longest path to it has been computed, its head, and the longest path behind it, its tail, follows
it. Of the ops of a device with a head and a tail of so much at the least, the first starts after such a head, and such
a tail follows the last; between, the device has the work of all of them (Carlier, "The one-machine sequencing problem",
1982). Ops that wait for no row of the batch, such as casts of weights, are left out of the work.

For a given part it is also known which tensors enter and leave it: paths are longer by their transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from partitioner.planner.pipeline.op_places import Floats
from partitioner.planner.pipeline.ordered_items import between
from partitioner.planner.pipeline.step_ops import Part, StepOps, Waits

# Heads and tails that are told apart.
_NUM_HEADS, _NUM_TAILS = 24, 12


def seconds_of_all_parts(ops: StepOps) -> Floats:
    """`(n + 1, n + 1)`: entry i, j bounds the step if a device holds items i to j; transfers take no time."""
    heads, tails = (values[:, 0] for values in _heads_and_tails(ops, ops.waits([(0, ops.num_items)]), 1))
    seconds = np.zeros((ops.num_items + 1, ops.num_items + 1))
    counted = ops.is_counted
    for head, tail in product(_steps(heads[counted], _NUM_HEADS), _steps(tails[counted], _NUM_TAILS)):
        chosen = counted & (heads >= head) & (tails >= tail)
        work = between(ops.work(chosen))
        np.maximum(seconds, np.where(work > 0, head + work + tail, 0.0), out=seconds)
    return seconds


def seconds_with_transfers(ops: StepOps, parts: Sequence[Part], waits: Waits) -> Floats:
    """The same for each of some parts, with transfers of what enters and leaves the part (`StepOps.waits`)."""
    counted = np.flatnonzero(ops.is_counted)
    heads, tails = (values[counted] for values in _heads_and_tails(ops, waits, len(parts)))
    place, seconds = ops.place[counted], ops.seconds[counted]
    most = np.zeros(len(parts))
    for number, (start, end) in enumerate(parts):
        own = np.flatnonzero((place >= start) & (place < end))
        most[number] = one_machine_seconds(heads[own, number], seconds[own], tails[own, number])
    return most


def one_machine_seconds(heads: Floats, seconds: Floats, tails: Floats) -> float:
    """What a device takes at the least for ops with these heads and tails; 0 for none."""
    most, order = 0.0, np.argsort(-tails, kind="stable")
    heads, seconds, tails = heads[order], seconds[order], tails[order]
    for least in _steps(heads, _NUM_HEADS):
        later = heads >= least
        most = max(most, least + float((np.cumsum(seconds[later]) + tails[later]).max()))
    return most


def _heads_and_tails(ops: StepOps, waits: Waits, num_parts: int) -> tuple[Floats, Floats]:
    """`(ops, parts)`: the longest paths to each op, and those behind it, without itself, where parts are apart."""
    heads, tails = np.zeros((2, len(ops.seconds), num_parts))
    for target, source, transfer in waits:
        np.maximum(heads[target], heads[source] + (ops.seconds[source] + transfer), out=heads[target])
    for target, source, transfer in reversed(waits):
        np.maximum(tails[source], tails[target] + (ops.seconds[target] + transfer), out=tails[source])
    return heads, tails


def _steps(values: Floats, most: int) -> list[float]:
    """Some of the values, evenly spread over their order, the least among them."""
    ordered = np.unique(values)
    return ordered[np.unique(np.linspace(0, len(ordered) - 1, most).astype(int))].tolist() if len(ordered) else []
