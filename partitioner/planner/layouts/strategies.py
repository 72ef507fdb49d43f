"""The automatic choice among one device, a layer split, mirrored replicas and mixed replicas, by predicted step time.

The best layout of each family is planned and listed, and the best of these is chosen. Layouts of replicas are estimated
first; of a family that is behind, only the one with the least estimate is planned, and none once time is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

from partitioner.deadline import (
    SHARE_OF_ESTIMATES,
    SHARE_OF_LAYOUT,
    SHARE_OF_MIRRORED,
    SHARE_OF_MIXED,
    SHARE_OF_ONE_REPLICA,
)
from partitioner.errors import InfeasibleError, PartitionError, TimeLimitError, UsageError
from partitioner.ir.plan import Objective, Strategy
from partitioner.ir.units import format_seconds
from partitioner.planner.layouts.candidates import (
    MOST_PER_REPLICA,
    candidates,
    runs_of,
    sharing_candidates,
    unlike,
)
from partitioner.planner.layouts.comparison import Family, left_out, naming_replicas, with_comparison
from partitioner.planner.layouts.groups import ReplicaGroups
from partitioner.planner.layouts.layout_planner import LayoutPlanner, ParallelLayout
from partitioner.planner.layouts.one_device import is_kept, note_on_kept
from partitioner.planner.model.tolerances import AS_ESTIMATED, AS_FAST
from partitioner.planner.pipeline.search_space import MANY

# Layouts that share devices are tried where their bound, without sums of gradients, is shorter by at least this share.
_GAIN_OF_SHARING = 0.1
# Layouts of a family that fit and are tried though a soft deadline is over.
_LEAST_TRIED = 4


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
        return math.inf if coupling else _least_step(*plans)

    on_one = planner.with_share(SHARE_OF_MIRRORED)
    planned = [_best(on_one, Strategy.MIRRORED, mirrored[:1] if coupling else mirrored, notes)]
    if is_large:  # mixed replicas mostly win, and whatever is behind them takes less time to search
        planned.append(_best(planner.with_share(SHARE_OF_MIXED), Strategy.MIXED, mixed, notes, known(*planned)))
    are_next = has_others and not coupling
    alone = _one_replica(planner.with_share(SHARE_OF_ONE_REPLICA) if are_next else planner, known(*planned))
    if not is_large:
        planned.append(_best(planner, Strategy.MIXED, mixed, notes, known(alone, *planned)))
    if are_next:
        least = known(alone, *planned)
        planned.append(_best(planner, Strategy.MIXED, _promising_shared(planner, least, most_replicas), notes, least))
    families = _best_of_each(planned, planner.objective)
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
        planner, chosen, alone if isinstance(alone, ParallelLayout) else None, families, eligible, notes
    )


def _simplest_of_best(layouts: Sequence[ParallelLayout], objective: Objective) -> ParallelLayout:
    """The best layout, or one that is as fast and does without splits in replicas."""
    best = min(layouts, key=lambda layout: _objective_key(layout, objective))
    if objective is Objective.MEMORY:
        return best
    as_fast = (layout for layout in layouts if layout.step_seconds <= AS_FAST * best.step_seconds)
    return min(
        as_fast, key=lambda layout: (len(layout.groups) > 1 < len(layout.groups[0]), *_objective_key(layout, objective))
    )


def _least_step(*planned: Family | ParallelLayout | PartitionError | None) -> float:
    """The least step of what fits, in seconds; infinite where nothing does."""
    layouts = [plan.layout if isinstance(plan, Family) and plan.fits else plan for plan in planned]
    return min((layout.step_seconds for layout in layouts if isinstance(layout, ParallelLayout)), default=math.inf)


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


def _best_of_each(families: Iterable[Family | None], objective: Objective) -> list[Family]:
    """For each strategy the best family."""
    best: dict[Strategy, Family] = {}
    for family in filter(None, families):
        incumbent = best.setdefault(family.strategy, family)
        if (not family.fits, _objective_key(family.layout, objective)) < (
            not incumbent.fits,
            _objective_key(incumbent.layout, objective),
        ):
            best[family.strategy] = family
    return list(best.values())


def _one_replica(planner: LayoutPlanner, known_seconds: float) -> ParallelLayout | PartitionError:
    """One device or a layer split; of many equal devices, only as many are used as the step needs to fit."""
    topology = planner.machines
    count = size = len(topology.devices)
    if count > MANY and not planner.names_devices and not unlike(topology, tuple((device,) for device in range(count))):
        size = MOST_PER_REPLICA
    least = 1
    while True:
        group, is_whole = runs_of(topology, size)[0] if size < count else tuple(range(count)), size == count
        try:
            if is_whole or planner.has_room_for_variables((group,)):
                return planner(
                    Strategy.AUTO, (group,), explains=is_whole, least_devices=least, known_seconds=known_seconds
                )
        except (InfeasibleError, TimeLimitError) as error:
            if is_whole:
                return error
        least, size = size + 1, min(2 * size, count)


def _best(
    planner: LayoutPlanner,
    strategy: Strategy,
    groupings: Sequence[ReplicaGroups],
    notes: list[str],
    known_seconds: float = math.inf,
) -> Family | None:
    """The best layout of a family; where none fits, the first as it would be with unlimited memory.

    What takes longer than `known_seconds`, the step of another layout, is not looked at closely, and not at all once
    time is over; a note says so of a family of which nothing was, and another counts layouts for which there was no
    time. Nobody waits for a soft deadline: some that fit are tried in any case, first those with the least estimates.
    """
    best: ParallelLayout | None = None
    too_large = [groups for groups in groupings if not planner.has_room_for_variables(groups)]
    possible = [groups for groups in groupings if groups not in too_large]
    waits = planner.deadline.is_soft
    estimated = _estimated(planner, strategy, possible, known_seconds)
    num_late, num_tried, behind = len(possible) - len(estimated), 0, list[float]()
    error = 1.0  # of the best one's estimate; others leave out the same
    for index, (estimate, groups) in enumerate(estimated):
        least, is_over = min(known_seconds, _least_step(best)), planner.deadline.is_over
        is_behind = estimate > (least / error if is_over else least * AS_ESTIMATED)
        if is_behind and (is_over or best is not None) and planner.objective is not Objective.MEMORY:
            behind.append(estimate)
            continue
        if any(len(other[0]) == len(groups[0]) and len(other) > len(groups) for other in too_large):
            continue  # each replica would have more rows
        if is_over and not (waits and num_tried < _LEAST_TRIED):
            num_late += len(estimated) - index
            break
        is_simple = len(groups[0]) == 1 or len(planner.machines.devices) <= MANY
        try:
            layout = (planner if is_simple else planner.with_share(SHARE_OF_LAYOUT))(
                strategy,
                groups,
                explains=False,
                known_seconds=least,
            )
        except UsageError:  # more devices than parts, say
            continue
        except InfeasibleError:
            too_large.append(groups)
            continue
        except TimeLimitError:
            num_late += 1
            continue
        num_tried += 1
        if best is None or _objective_key(layout, planner.objective) < _objective_key(best, planner.objective):
            best = layout
            error = min(max(1.0, layout.step_seconds / estimate), AS_ESTIMATED) if estimate else 1.0
    if num_late:
        notes.append(
            f"no time was left for {num_late} of {len(groupings)} {strategy} layouts; a longer time limit has some"
        )
    if best is not None:
        return Family(strategy=strategy, layout=best, fits=True)
    if behind:
        notes.append(_not_looked_at(strategy, min(behind)))
        return None
    if not too_large or planner.deadline.is_over:
        return None
    try:
        first = min(too_large, key=planner.promised_seconds)
        return Family(strategy=strategy, layout=planner.unlimited()(strategy, first, explains=False), fits=False)
    except (InfeasibleError, TimeLimitError):  # memory is not the cause: constraints or coupled ops forbid the layout
        return None


def _not_looked_at(strategy: Strategy, estimate: float) -> str:
    step = f"are estimated to take {format_seconds(estimate)} a step" if estimate < math.inf else "take longer"
    return f"{strategy} replicas {step}, and were not simulated, as the time of the search was over"


def _estimated(
    planner: LayoutPlanner, strategy: Strategy, groupings: Sequence[ReplicaGroups], known_seconds: float
) -> list[tuple[float, ReplicaGroups]]:
    """The estimates of these layouts and the layouts, the least first; of what takes longer than others, infinity.

    All are estimated, unless a time limit allows less: then those that promise most. Where memory is minimised, that
    is all that they are sorted by.
    """
    promising = sorted(groupings, key=planner.promised_seconds)
    if planner.objective is Objective.MEMORY:
        return [(planner.promised_seconds(groups), groups) for groups in promising]
    deadline, most = planner.with_share(SHARE_OF_ESTIMATES).deadline, known_seconds
    estimated: list[tuple[float, ReplicaGroups]] = []
    for groups in promising:
        if deadline.is_over and not deadline.is_soft:
            break
        seconds = math.inf
        if planner.bound_seconds(groups) < most:
            with suppress(PartitionError):  # is raised again where it is tried
                seconds = planner.estimated_seconds(strategy, groups, most)
        estimated.append((seconds, groups))
        most = min(most, AS_ESTIMATED * seconds)
    return sorted(estimated, key=lambda one: one[0])


def _objective_key(layout: ParallelLayout, objective: Objective) -> tuple[float, ...]:
    """The objective, then the number of devices."""
    figures = (layout.step_seconds, float(layout.largest_peak_bytes))
    if objective is Objective.MEMORY:
        return (*reversed(figures), float(layout.num_devices))
    return (figures[0], float(layout.num_devices), figures[1])
