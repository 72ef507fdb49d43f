"""Choose the layout: the requested one, or the best of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cost_models.topology import Topology
from partitioner.ir.plan import Strategy
from partitioner.planner.layouts.candidates import candidates, sharing_candidates
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.replicas import replica_groups
from partitioner.planner.layouts.strategies import best_strategy


@dataclass(frozen=True, kw_only=True)
class LayoutRequest:
    """Which layouts may be chosen.

    Attributes:
        strategy: How devices may be used.
        replicas: How many, `auto`, or numbers of devices that do the same.
        microbatches: Of a replica, or `auto`.
        coupling: What replicas would change in the results, a sentence each.
        is_cuttable: Whether the batch can be cut at all.
        counts: Numbers of microbatches of a replica to choose from.
    """

    strategy: Strategy
    replicas: int | str | Sequence[int]
    microbatches: int | str
    coupling: tuple[str, ...]
    is_cuttable: bool
    counts: tuple[int, ...]

    @property
    def is_open(self) -> bool:
        """Whether all strategies are compared, rather than the requested strategy planned."""
        return self.strategy is Strategy.AUTO and self.replicas == "auto"

    def groups(self, machines: Topology, batch_size: int) -> ReplicaGroups:
        """The devices of each replica, where they follow from the request.

        Raises:
            UsageError: The replicas do not go with the devices.
        """
        return replica_groups(
            self.strategy, self.replicas, machines, batch_size=batch_size, microbatches=self.microbatches
        )

    def rows(self, machines: Topology, batch_size: int) -> list[int]:
        """The numbers of rows that layouts on these devices are planned with: the batch, then parts of it.

        Raises:
            UsageError: The replicas do not go with the devices.
        """
        kinds = (candidates, sharing_candidates) if self.is_open and self.is_cuttable else ()
        layouts = [groups for kind in kinds for groups in kind(machines, most_replicas=batch_size)]
        numbers = {len(self.groups(machines, batch_size)), *map(len, layouts)}
        return [batch_size, *_parts(batch_size, numbers, self.counts)]


def _parts(batch_size: int, numbers: Iterable[int], counts: Sequence[int]) -> list[int]:
    """Rows of a microbatch, for each number of replicas and of their microbatches."""
    return sorted({math.ceil(batch_size / (number * count)) for number in numbers for count in counts})


def choose_layout(request: LayoutRequest, planner: LayoutPlanner, seconds: float | None = None) -> ParallelLayout:
    """Plan a request with a planner's devices and requirements, within its time limit or the given seconds.

    Raises:
        InfeasibleError: Nothing fits.
        TimeLimitError: No layout that fits was found in time.
        UsageError: The requirements do not go with the devices.
    """
    planner = planner.started(seconds)
    if request.is_open:
        return best_strategy(
            planner,
            microbatches=request.microbatches,
            coupling=request.coupling,
            is_cuttable=request.is_cuttable,
        )
    groups = request.groups(planner.machines, planner.batch_size)
    return planner.with_baselines(planner(request.strategy, groups))
