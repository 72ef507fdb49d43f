"""The automatic choice among one device, a layer split, mirrored replicas and mixed replicas, by predicted step time.

The best layout of each family is planned and listed, and the best of these is chosen. Layouts of replicas are estimated
first; of a family that is behind, only the one with the least estimate is planned, and none once time is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from partitioner.deadline import (
    SHARE_OF_MIRRORED,
    SHARE_OF_MIXED,
    SHARE_OF_ONE_REPLICA,
)
from partitioner.errors import InfeasibleError, PartitionError, TimeLimitError
from partitioner.ir.plan import Objective, Strategy
from partitioner.planner.layouts.candidates import (
    MOST_PER_REPLICA,
    candidates,
    runs_of,
    sharing_candidates,
    unlike,
)
from partitioner.planner.layouts.comparison import left_out, naming_replicas, with_comparison
from partitioner.planner.layouts.families import Family, FamilySearch, least_step, objective_key
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.layout_planner import Bounds, LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.one_device import is_kept, note_on_kept
from partitioner.planner.model.tolerances import AS_ESTIMATED, AS_FAST
from partitioner.planner.pipeline.search_space import MANY

# Layouts that share devices are tried where their bound, without sums of gradients, is shorter by at least this share.
_GAIN_OF_SHARING = 0.1


class _BehindError(TimeLimitError):
    """One replica is far behind other layouts."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            "one replica is estimated to take longer: the time of the search was over, and none was simulated"
        )
        self.bounds = bounds


def best_strategy(
    planner: LayoutPlanner, *, microbatches: int | str, coupling: Sequence[str], is_cuttable: bool
) -> ParallelLayout:
    """Plan every family that may be chosen, and choose.

    Args:
        planner: Plans a layout.
        microbatches: As asked for, per replica.
        coupling: What replicas would change in the results, a sentence each; if there are any, replicas are not chosen.
        is_cuttable: Whether the batch can be cut at all.

    Raises:
        InfeasibleError: Nothing fits.
        TimeLimitError: No layout that fits was found in time.
        UsageError: The requirements do not go with the devices.
    """
    has_others = len(planner.machines.devices) > 1 and is_cuttable and not planner.names_devices
    is_large = len(planner.machines.devices) > MOST_PER_REPLICA
    most_replicas = planner.batch_size // (microbatches if isinstance(microbatches, int) else 1)
    notes: list[str] = []
    groupings = _even_groupings(planner, most_replicas, notes) if has_others else []
    mirrored = [groups for groups in groupings if len(groups[0]) == 1]
    mixed = [] if coupling else [groups for groups in groupings if len(groups[0]) > 1]

    def known(*plans: Family | ParallelLayout | PartitionError | None) -> float:
        return math.inf if coupling else least_step(*plans)

    planned: list[Family] = []
    reasons: dict[Strategy, str] = {}

    def plan(planner: LayoutPlanner, strategy: Strategy, groupings: Sequence[ReplicaGroups], seconds: float) -> None:
        search = FamilySearch(planner, strategy, groupings, seconds)
        if family := search.run():
            planned.append(family)
        notes.extend(search.notes)
        reasons.setdefault(strategy, search.reason)

    plan(planner.with_share(SHARE_OF_MIRRORED), Strategy.MIRRORED, mirrored[:1] if coupling else mirrored, math.inf)
    if is_large:  # mixed replicas mostly win, and whatever is behind them takes less time to search
        plan(planner.with_share(SHARE_OF_MIXED), Strategy.MIXED, mixed, known(*planned))
    are_next = has_others and not coupling
    alone = _one_replica(planner.with_share(SHARE_OF_ONE_REPLICA) if are_next else planner, known(*planned))
    if not is_large:
        plan(planner, Strategy.MIXED, mixed, known(alone, *planned))
    if are_next:
        least = known(alone, *planned)
        plan(planner, Strategy.MIXED, _promising_shared(planner, least, most_replicas), least)
    families = _best_of_each(planned, planner.objective)
    listed = {family.strategy for family in families}
    notes += [reason for strategy, reason in reasons.items() if reason and strategy not in listed]
    if isinstance(alone, _BehindError):
        notes.append(str(alone))
    if planner.names_devices and len(planner.machines.devices) > 1:
        notes.append("requirements name devices, so that no replicas were considered")

    eligible = [alone] if isinstance(alone, ParallelLayout) else []
    eligible += [family.layout for family in families if family.fits and not coupling]
    if not eligible:
        assert isinstance(alone, PartitionError)
        raise naming_replicas(alone, families, coupling)
    chosen = _simplest_of_best(eligible, planner.objective)
    if isinstance(alone, ParallelLayout) and alone.num_devices == 1 < chosen.num_devices:
        steps = alone.step_seconds, chosen.step_seconds
        if is_kept(*steps, planner.objective):
            notes.append(note_on_kept(*steps, chosen.num_devices))
            chosen = alone
    if coupling:
        notes += left_out(chosen, families, coupling)
    return with_comparison(
        planner,
        chosen,
        alone if isinstance(alone, ParallelLayout) else None,
        families,
        eligible,
        notes,
        unplanned=alone.bounds if isinstance(alone, _BehindError) else None,
    )


def _simplest_of_best(layouts: Sequence[ParallelLayout], objective: Objective) -> ParallelLayout:
    """The best layout, or one that is as fast and does without splits in replicas."""
    best = min(layouts, key=lambda layout: objective_key(layout, objective))
    if objective is Objective.MEMORY:
        return best
    as_fast = (layout for layout in layouts if layout.step_seconds <= AS_FAST * best.step_seconds)
    return min(
        as_fast, key=lambda layout: (len(layout.groups) > 1 < len(layout.groups[0]), *objective_key(layout, objective))
    )


def _even_groupings(planner: LayoutPlanner, most_replicas: int, notes: list[str]) -> list[ReplicaGroups]:
    """Groups whose peers are alike; where some were left out, the reason is added to `notes`."""
    groupings = list(candidates(planner.machines, most_replicas=most_replicas))
    even = [groups for groups in groupings if not unlike(planner.machines, groups)]
    if len(even) < len(groupings):
        others = next(filter(None, (unlike(planner.machines, groups) for groups in groupings)))
        notes.append(f"{others} are not alike, so that no replicas were considered that do the same on them")
    return even


def _promising_shared(planner: LayoutPlanner, known_seconds: float, most_replicas: int) -> list[ReplicaGroups]:
    """Groups that share devices, and whose bound is much below the step time of the best layout already planned."""
    groupings = sharing_candidates(planner.machines, most_replicas=most_replicas)
    alike = [groups for groups in groupings if not unlike(planner.machines, groups)]
    if planner.objective is Objective.MEMORY:
        return alike
    least = known_seconds * (1 - _GAIN_OF_SHARING)
    return [groups for groups in alike if not planner.deadline.is_over and planner.bound_seconds(groups) <= least]


def _best_of_each(families: Iterable[Family], objective: Objective) -> list[Family]:
    """For each strategy the best family."""
    best: dict[Strategy, Family] = {}
    for family in families:
        incumbent = best.setdefault(family.strategy, family)
        if (not family.fits, objective_key(family.layout, objective)) < (
            not incumbent.fits,
            objective_key(incumbent.layout, objective),
        ):
            best[family.strategy] = family
    return list(best.values())


def _is_behind(planner: LayoutPlanner, groups: ReplicaGroups, known_seconds: float) -> bool:
    """Whether a step takes longer than a known one: as one graph for certain, as a pipeline that fits by estimates.

    Where memory is minimised none is behind.
    """
    if planner.objective is Objective.MEMORY or planner.path_seconds(groups) <= known_seconds:
        return False
    if not planner.is_estimated_to_fit(Strategy.AUTO, groups):
        return False
    return planner.estimated_seconds(Strategy.AUTO, groups, known_seconds) > known_seconds


def _one_replica(planner: LayoutPlanner, known_seconds: float) -> ParallelLayout | PartitionError:
    """One device or a layer split; of many equal devices, only as many are used as the step needs to fit.

    Once time is over, a step that is estimated to be far behind what is known is not simulated.
    """
    topology = planner.machines
    count = size = len(topology.devices)
    if count > MANY and not planner.names_devices and not unlike(topology, tuple((device,) for device in range(count))):
        size = MOST_PER_REPLICA
    least = 1
    while True:
        group, is_whole = runs_of(topology, size)[0] if size < count else tuple(range(count)), size == count
        try:
            if is_whole or planner.has_room_for_variables((group,)):
                if planner.deadline.is_over and _is_behind(planner, (group,), AS_ESTIMATED * known_seconds):
                    return _BehindError(planner.bounds(Strategy.AUTO, (group,), known_seconds))
                return planner(
                    Strategy.AUTO, (group,), explains=is_whole, least_devices=least, known_seconds=known_seconds
                )
        except (InfeasibleError, TimeLimitError) as error:
            if is_whole:
                return error
        least, size = size + 1, min(2 * size, count)
