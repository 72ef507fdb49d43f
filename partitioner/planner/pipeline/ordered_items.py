"""Running sums over items in forward order: what each adds to the stage that holds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.memory import allocated_bytes
from partitioner.ir.by_identity import ByIdentity
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph
from partitioner.planner.pipeline.op_places import Floats, OpPlaces
from partitioner.planner.simulate.program_costs import dispatch_seconds

_SECONDS = (
    "forward_seconds",
    "backward_seconds",
    "weights_seconds",
    "again_seconds",
    "selective_seconds",
    "once_seconds",
    "update_seconds",
    "sum_seconds",
)


@dataclass(frozen=True, kw_only=True)
class OrderedItems:
    """Running sums over n items in forward order at one batch size; entry i is the sum over the first i of them.

    Seconds have a row for each device, `(devices, n + 1)`; all else has the shape `(n + 1,)`, but for `passing_bytes`.

    Attributes:
        order: The items.
        forward_seconds: Forward ops of a microbatch.
        backward_seconds: Backward ops of a microbatch.
        weights_seconds: Those of them that no other stage may wait for, wherever stages are cut.
        again_seconds: Forward ops that a stage runs again if it recomputes, wherever it is cut: those that backward ops
            of the same item read, and what these need of the item.
        selective_seconds: The same where only cheap ops run again.
        once_seconds: Ops that depend on no row, and run once before all microbatches.
        update_seconds: Ops that run once after all microbatches.
        sum_seconds: Sums of gradients over replicas, before these; at the least.
        saved_bytes: Of activations that a microbatch keeps for its backward.
        selective_bytes: Of those that it keeps where cheap ops run again.
        late_bytes: Of what it keeps for gradients of weights that wait.
        passing_bytes: `(n,)`, no sums: the most bytes of each item that are held for a moment.
        variable_bytes: Of variables.
        gradient_bytes: Of the gradients of variables that a microbatch gives, as its backward makes them.
        summed_bytes: Of their sums over microbatches, which may be of a wider type; of the gradients where the batch is
            whole.
        forward_bytes: At boundary i, bytes of a microbatch that cross to later items.
        backward_bytes: Bytes that cross to earlier items.
        least_forward_bytes: The smallest of the tensors that cross to later items and depend on rows.
        least_backward_bytes: The smallest that cross to earlier items.
        tensor_bytes: `(tensors,)`: of every tensor of a microbatch.
        places: Where tensors cross.
    """

    order: tuple[int, ...]
    forward_seconds: Floats
    backward_seconds: Floats
    weights_seconds: Floats
    again_seconds: Floats
    selective_seconds: Floats
    once_seconds: Floats
    update_seconds: Floats
    sum_seconds: Floats
    saved_bytes: Floats
    selective_bytes: Floats
    late_bytes: Floats
    passing_bytes: Floats
    variable_bytes: Floats
    gradient_bytes: Floats
    summed_bytes: Floats
    forward_bytes: Floats
    backward_bytes: Floats
    least_forward_bytes: Floats
    least_backward_bytes: Floats
    tensor_bytes: Floats
    places: OpPlaces

    @cached_property
    def most_passing_of_runs(self) -> Floats:
        """`x[k, i]`: the most of the bytes of items i to i + 2**k that are held for a moment; of fewer at the end."""
        rows = [np.append(self.passing_bytes, 0.0)]
        while 2 ** len(rows) <= len(self.order):
            half = 2 ** (len(rows) - 1)
            rows.append(np.maximum(rows[-1], np.append(rows[-1][half:], np.zeros(half))))
        return np.stack(rows)

    @cached_property
    def alike(self) -> Sequence[int]:
        """For each device, the first that takes as long for every item."""
        rows = np.stack([getattr(self, name) for name in _SECONDS])
        return [
            next(other for other in range(d + 1) if (rows[:, other] == rows[:, d]).all()) for d in range(rows.shape[1])
        ]

    @cached_property
    def pass_seconds(self) -> Floats:
        """Forward and backward of a microbatch."""
        return self.forward_seconds + self.backward_seconds

    @cached_property
    def going_back(self) -> tuple[int, int] | None:
        """The first and the last position that gradients cross; None where they cross none, or not all between."""
        crossed = 1 + np.flatnonzero(self.backward_bytes[1:-1])
        if not len(crossed) or len(crossed) != crossed[-1] + 1 - crossed[0]:
            return None
        return int(crossed[0]), int(crossed[-1])

    @property
    def all_go_back(self) -> bool:
        """Whether gradients cross every position between two items."""
        return self.going_back == (1, len(self.order) - 1)

    def least_calls(self, num_stages: int) -> int:
        """How often a microbatch calls so many stages at the least: forward, and backward where gradients cross all
        boundaries."""
        if num_stages == 1:  # what it is called for may be one program, or no program at all
            return 0
        return num_stages * (2 if self.all_go_back else 1)

    @cached_property
    def again_by_way(self) -> tuple[Floats, Floats, Floats]:
        """What runs again of a microbatch, by what a stage does about its activations (`stage_sequence.py`)."""
        return np.zeros_like(self.again_seconds), self.selective_seconds, self.again_seconds

    @cached_property
    def least_pass_seconds(self) -> Floats:
        """The same of items that are each on their fastest device, `(n + 1,)`."""
        return _running(np.diff(self.pass_seconds).min(axis=0))


def ordered_items(
    costed: CostedGraph,
    places: OpPlaces,
    sums: Mapping[str, Floats],
    summed: Collection[str] = (),
    known: ByIdentity | None = None,
) -> OrderedItems:
    """The running sums for the batch size of a costed graph.

    Args:
        costed: The graph.
        places: Where its ops and tensors count.
        sums: Seconds by device that it takes to sum gradients over replicas, by name.
        summed: The gradients that are summed over microbatches; none where the batch is whole.
        known: Has sums of other layouts, which are the same for this number of rows and these devices.
    """
    known = known or ByIdentity()
    sum_seconds = np.zeros((len(costed.topology.devices), len(places.order)))
    for name, seconds in sums.items():
        sum_seconds[:, places.place[costed.graph.tensor[name].producer]] += seconds
    summed_bytes = np.zeros(len(places.order))
    for name in summed:
        tensor = costed.graph.tensor[name]
        summed_bytes[places.place[tensor.producer]] += allocated_bytes(tensor.size_bytes, "GPU")
    bytes_of = known(_bytes, costed.graph, places)
    of_kind = {
        kind: known(
            _seconds, costed.graph, costed.columns[kind], places, dispatch_seconds=dispatch_seconds(costed, kind)
        )
        for kind in set(costed.alike)
    }
    return OrderedItems(
        order=places.order,
        places=places,
        sum_seconds=_running(sum_seconds),
        summed_bytes=_running(summed_bytes) if summed else bytes_of["gradient_bytes"],
        **{name: np.stack([of_kind[kind][name] for kind in costed.alike]) for name in of_kind[0]},
        **bytes_of,
    )


def _bytes(graph: OpGraph, places: OpPlaces) -> dict[str, Floats]:
    """All fields in bytes."""
    count = len(places.order)
    sizes = np.array([tensor.size_bytes for tensor in graph.tensors], dtype=float)
    buffer_sizes = np.array([allocated_bytes(tensor.size_bytes, "GPU") for tensor in graph.tensors], dtype=float)
    variable_sizes = np.array([allocated_bytes(one.size_bytes, "GPU") for one in graph.variables], dtype=float)
    return {
        "saved_bytes": _running(places.saved.totals(buffer_sizes, count)),
        "selective_bytes": _running(places.selectively_saved.totals(buffer_sizes, count)),
        "late_bytes": _running(places.late.totals(buffer_sizes, count)),
        "passing_bytes": places.passing.most(buffer_sizes, count),
        "variable_bytes": _running(places.variables.totals(variable_sizes, count)),
        "gradient_bytes": _running(places.gradients.totals(buffer_sizes, count)),
        "forward_bytes": places.forward.tensors.totals(sizes, count + 1),
        "backward_bytes": places.backward.tensors.totals(sizes, count + 1),
        "least_forward_bytes": places.forward.by_row.least(sizes, count + 1),
        "least_backward_bytes": places.backward.by_row.least(sizes, count + 1),
        "tensor_bytes": sizes,
    }


def _seconds(graph: OpGraph, taken: Sequence[float], places: OpPlaces, *, dispatch_seconds: float) -> dict[str, Floats]:
    """The fields in seconds on one device, where ops take so long and are dispatched one by one; not those of sums."""
    seconds = np.array(taken) + dispatch_seconds * np.array([op.type != "Placeholder" for op in graph.ops])
    count = len(places.order)
    return {f"{kind}_seconds": _running(placed.totals(seconds, count)) for kind, placed in places.ops.items()}


def _running(values: Floats) -> Floats:
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def between(sums: Floats) -> Floats:
    """`x[i, j]`: the sum over items i to j, of running sums."""
    return sums[None, :] - sums[:, None]
