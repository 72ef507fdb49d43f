"""The items of a step: worked out once for layouts that differ in rows and in the number of devices alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partitioner.ir.costed import CostedGraph
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.planner.model.coarsen import DEFAULT_MAX_ITEMS, with_lightest_joined
from partitioner.planner.model.coarsening import Coarsening
from partitioner.planner.model.lossless import lossless
from partitioner.planner.pipeline.narrow_places import between_narrow_places
from partitioner.planner.pipeline.stage_items import StageItems


@dataclass(frozen=True, kw_only=True)
class StepItems:
    """The items of a step.

    Attributes:
        fine: Items that stages are cut between: a dynamic program takes more of them than the solver.
        coarse: Items that the solver places.
        in_order: The fine ones in forward order.
    """

    fine: Coarsening
    coarse: Coarsening
    in_order: StageItems

    @classmethod
    def of(cls, costed: CostedGraph, constraints: Sequence[ResolvedConstraint] = ()) -> StepItems:
        """The items of a step.

        Args:
            costed: The step, at any number of rows.
            constraints: Allowed devices and colocations of ops.

        Raises:
            InfeasibleError: Constraints contradict each other.
        """
        fine = between_narrow_places(costed, lossless(costed, constraints))
        coarse = with_lightest_joined(costed, fine, DEFAULT_MAX_ITEMS)
        return cls(fine=fine, coarse=coarse, in_order=StageItems(costed, fine))

    def anywhere(self, num_devices: int) -> StepItems:
        """The same items, each allowed on all of so many devices."""
        return replace(self, fine=self.fine.anywhere(num_devices), coarse=self.coarse.anywhere(num_devices))
