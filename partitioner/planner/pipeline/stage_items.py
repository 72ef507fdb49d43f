"""The items that stages are cut between: their forward order, and where ops and tensors count."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from partitioner.ir.by_identity import ByIdentity
from partitioner.ir.costed import CostedGraph
from partitioner.planner.model.assignment import adjacent_items
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.pipeline.item_order import forward_order
from partitioner.planner.pipeline.op_places import Floats, OpPlaces, op_places
from partitioner.planner.pipeline.ordered_items import OrderedItems, ordered_items


@dataclass(frozen=True)
class StageItems:
    """The items of a step; what follows from them is worked out once, for every number of rows.

    Attributes:
        costed: The step, at any number of rows.
        coarsening: Its items.
    """

    costed: CostedGraph
    coarsening: Coarsening

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The items in the order in which forwards run."""
        return forward_order(self.costed, self.coarsening)

    @cached_property
    def adjacent(self) -> list[set[int]]:
        """For each item, the others that it exchanges a tensor with or waits for."""
        return adjacent_items(self.costed, self.coarsening)

    @cached_property
    def places(self) -> OpPlaces:
        """Where the ops and tensors of the step count."""
        return op_places(self.costed, self.coarsening, self.order)

    def at(self, costed: CostedGraph, sums: Mapping[str, Floats], summed: Collection[str]) -> OrderedItems:
        """Running sums over the items at another number of rows; `sums` and `summed` as for `ordered_items`."""
        return ordered_items(costed, self.places, sums, summed, self._known)

    @cached_property
    def _known(self) -> ByIdentity:
        return ByIdentity()
