"""Find the best placement: simple candidates, the solver's, all judged by one simulation within the memory limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from partitioner.errors import InfeasibleError, TimeLimitError, UsageError
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import short_name
from partitioner.ir.plan import Baseline, Objective, SolverInfo, Strategy
from partitioner.ir.problem import PlacementProblem
from partitioner.ir.schedule import Schedule
from partitioner.planner import baselines
from partitioner.planner.bounds import lower_bound_seconds
from partitioner.planner.buffers import Buffers, total_bytes
from partitioner.planner.coarsen import Coarsening, coarsen
from partitioner.planner.problem import item_bytes, placement_problem
from partitioner.planner.simulate import simulate
from partitioner.planner.solve.client import SolveResult, solve

# Among placements within 1 % of the fastest, the one whose fullest device is emptiest: estimates are not that exact,
# and memory to spare is worth more than a percent of time.
_BALANCE_PERMILLE = 10
_MEMORY_ONLY_PERMILLE = 10**6
_MEMORY_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A placement and what it is predicted to do."""

    name: str
    assignment: tuple[int, ...]
    schedule: Schedule
    fits: bool

    @property
    def peak_share(self) -> float:
        """Largest peak memory in bytes over all devices."""
        return max(use.total_bytes for use in self.schedule.peak.values())


@dataclass(frozen=True, kw_only=True)
class Found:
    """The chosen placement, what it was compared with, and what is proved of it."""

    placement: dict[str, int]
    schedule: Schedule
    coarsening: Coarsening
    baselines: tuple[Baseline, ...]
    solver: SolverInfo
    notes: tuple[str, ...]


def search(
    costed: CostedGraph,
    *,
    strategy: Strategy,
    objective: Objective = Objective.THROUGHPUT,
    pinned: Mapping[str, int] | None = None,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    describe_need: Callable[[], str | None] = lambda: None,
) -> Found:
    """Choose a device for every op.

    Args:
        costed: The graph, its costs and its topology (which holds the memory limits).
        strategy: `single`; `layer-split`, which uses every device; or `auto`, which uses as many as pay.
        objective: `throughput` and `latency` minimise the step (they differ only once microbatches overlap);
            `memory` minimises the largest peak.
        pinned: Device index by op name.
        time_limit_seconds: For the solver.
        seed: For the solver.
        describe_need: Text that helps a user whose model does not fit.

    Raises:
        InfeasibleError: No placement fits, with the bytes needed and available.
        TimeLimitError: The time ran out before a placement that fits was found.
        UsageError: The pins contradict the strategy, or a layer split has fewer parts than devices.
    """
    return _Search(costed, strategy, objective, dict(pinned or {}), time_limit_seconds, seed, describe_need).run()


class _Search:
    def __init__(
        self,
        costed: CostedGraph,
        strategy: Strategy,
        objective: Objective,
        pinned: dict[str, int],
        time_limit_seconds: float,
        seed: int,
        describe_need: Callable[[], str | None],
    ) -> None:
        self.costed, self.strategy, self.objective, self.pinned = costed, strategy, objective, pinned
        self.time_limit_seconds, self.seed, self.describe_need = time_limit_seconds, seed, describe_need
        self.devices = costed.topology.devices
        self.buffers = Buffers(costed)
        self.coarsening = coarsen(costed, keep_apart=pinned)
        self.required = self._required_devices()
        self.simulated: dict[tuple[int, ...], Schedule] = {}
        self.notes: list[str] = []

    def run(self) -> Found:
        if self.strategy is Strategy.LAYER_SPLIT and len(self.coarsening.items) < len(self.devices):
            raise UsageError(
                f"the model has {len(self.coarsening.items)} parts that can be placed, fewer than {len(self.devices)} devices",
                help=f"give at most {len(self.coarsening.items)} devices",
            )
        compared = self._baselines()
        bound = lower_bound_seconds(self.costed)
        eligible = [candidate for candidate in compared if self._is_eligible(candidate)]
        seconds, status = 0.0, "optimal"
        if not self._is_settled(eligible, bound):
            result = self._ask_solver([c.assignment for c in compared])
            seconds, status = result.solution.seconds, result.solution.status
            if result.note:
                self.notes.append(result.note)
            if result.solution.assignment is not None:
                solved = self._candidate("solver", result.solution.assignment)
                eligible += [solved] if self._is_eligible(solved) else []
        if not eligible:
            raise self._nothing_fits(status)
        best = min(eligible, key=self._worth)
        step = best.schedule.step_seconds
        gap = max(0.0, (step - bound) / step) if step > 0 else 0.0
        return Found(
            placement={name: best.assignment[item] for name, item in self.coarsening.item_of.items()},
            schedule=best.schedule,
            coarsening=self.coarsening,
            baselines=tuple(
                Baseline(name=c.name, step_seconds=c.schedule.step_seconds, fits=c.fits) for c in compared
            ),
            solver=SolverInfo(
                status="optimal" if gap <= 1e-9 else "time-limit" if status == "time-limit" else "feasible",
                objective=step,
                lower_bound=min(bound, step),
                gap=gap,
                seconds=seconds,
                seed=self.seed,
            ),
            notes=tuple(self.notes),
        )

    def _required_devices(self) -> dict[int, int]:
        """Device by item, for items with a pinned op.

        Raises:
            UsageError: Ops of one item are pinned to different devices.
        """
        required: dict[int, int] = {}
        for name, device in self.pinned.items():
            item = self.coarsening.item_of[name]
            if required.setdefault(item, device) != device:
                raise UsageError(
                    f"pins send parts of {self.coarsening.names[item]!r} to different devices, but they share a device",
                    notes=[f"{short_name(self.devices[d].name)}" for d in sorted({required[item], device})],
                    help="ops on one variable, and all ops of one layer, stay together: pin the whole layer",
                )
        if self.strategy is Strategy.SINGLE and len(set(required.values())) > 1:
            raise UsageError("the pins need more than one device, the strategy is single", help="--strategy auto")
        return required

    def _baselines(self) -> list[Candidate]:
        count = len(self.devices)
        found = [self._candidate(f"single-device {short_name(self.devices[d].name)}", baselines.single_device(self.coarsening, d)) for d in self._distinct_devices()]
        if count > 1:
            found.append(self._candidate("equal-layers", baselines.equal_layers(self.coarsening, count)))
            found.append(self._candidate("greedy-by-bytes", baselines.greedy_by_bytes(self.costed, self.coarsening, count)))
        return found

    def _distinct_devices(self) -> list[int]:
        """One device of each kind: identical ones give identical baselines, unless a pin tells them apart."""
        kinds: dict[object, int] = {}
        for index, placed in enumerate(self.devices):
            key = (placed.device.name, placed.memory_bytes, index if index in self.required.values() else None)
            kinds.setdefault(key, index)
        return list(kinds.values())

    def _candidate(self, name: str, assignment: Sequence[int]) -> Candidate:
        key = tuple(assignment)
        if key not in self.simulated:
            placement = {op: key[item] for op, item in self.coarsening.item_of.items()}
            self.simulated[key] = simulate(self.costed, placement, self.buffers)
        schedule = self.simulated[key]
        fits = all(schedule.peak[placed.name].total_bytes <= placed.memory_bytes for placed in self.devices)
        return Candidate(name=name, assignment=key, schedule=schedule, fits=fits)

    def _is_eligible(self, candidate: Candidate) -> bool:
        used = set(candidate.assignment)
        allowed = {
            Strategy.SINGLE: len(used) == 1,
            Strategy.LAYER_SPLIT: len(used) == len(self.devices),
            Strategy.AUTO: True,
        }[self.strategy]
        return candidate.fits and allowed and all(candidate.assignment[i] == d for i, d in self.required.items())

    def _is_settled(self, eligible: Sequence[Candidate], bound: float) -> bool:
        """Whether a simple candidate is already known to be best, so that the solver need not run."""
        if self.strategy is Strategy.SINGLE or len(self.devices) == 1:
            return True
        if self.objective is Objective.MEMORY:
            return False
        return any(c.schedule.step_seconds <= bound * (1 + 1e-9) for c in eligible)

    def _worth(self, candidate: Candidate) -> tuple[float, ...]:
        step = candidate.schedule.step_seconds
        if self.objective is Objective.MEMORY:
            return (candidate.peak_share, step)
        return (step, candidate.peak_share, len(set(candidate.assignment)))

    def _ask_solver(self, known: Sequence[tuple[int, ...]]) -> SolveResult:
        """Solve, simulate, and while the simulated peak passes a limit, solve again with that much less room."""
        balance = _MEMORY_ONLY_PERMILLE if self.objective is Objective.MEMORY else _BALANCE_PERMILLE
        hints = [*known, baselines.balanced_compute(self.costed, self.coarsening, len(self.devices))]
        problem = placement_problem(
            self.costed,
            self.coarsening,
            capacities_bytes=[placed.memory_bytes for placed in self.devices],
            pinned=self.pinned,
            use_every_device=self.strategy is Strategy.LAYER_SPLIT,
            balance_permille=balance,
            hints=hints,
            time_limit_seconds=self.time_limit_seconds,
            seed=self.seed,
        )
        result, spent = solve(problem), 0.0
        for _ in range(_MEMORY_ROUNDS):
            spent += result.solution.seconds
            tighter = self._tighter(problem, result)
            if tighter is None or spent >= self.time_limit_seconds:
                break
            problem = replace(tighter, time_limit_seconds=self.time_limit_seconds - spent)
            result = solve(problem)
        return replace(result, solution=replace(result.solution, seconds=spent))

    def _tighter(self, problem: PlacementProblem, result: SolveResult) -> PlacementProblem | None:
        """The problem with less room where the simulated peak passed the limit; None when everything fits."""
        if result.solution.assignment is None:
            return None
        schedule = self._candidate("solver", result.solution.assignment).schedule
        over = [max(0, schedule.peak[p.name].total_bytes - p.memory_bytes) for p in self.devices]
        if not any(over):
            return None
        memory = item_bytes(self.costed, self.coarsening)
        used = [0] * len(self.devices)
        for item, device in enumerate(result.solution.assignment):
            used[device] += memory[item]
        devices = tuple(
            replace(device, capacity_bytes=max(0, used[index] - extra)) if extra else device
            for index, (device, extra) in enumerate(zip(problem.devices, over, strict=True))
        )
        return replace(problem, devices=devices)

    def _nothing_fits(self, status: str) -> Exception:
        if status == "time-limit":
            return TimeLimitError(
                f"no placement that fits was found within {self.time_limit_seconds:g} s",
                help=f"--time-limit {2 * self.time_limit_seconds:g}",
            )
        need = total_bytes(self.costed)
        have = [f"{short_name(p.name)} {_gib(p.memory_bytes)}" for p in self.devices]
        memory = item_bytes(self.costed, self.coarsening)
        largest = max(range(len(memory)), key=memory.__getitem__)
        return InfeasibleError(
            "the model does not fit on the given devices",
            notes=[
                f"needs >= {_gib(sum(need.values()))} GiB: "
                + ", ".join(f"{name} {_gib(size)}" for name, size in need.items() if size),
                f"have     {_gib(sum(p.memory_bytes for p in self.devices))} GiB: {', '.join(have)}",
                f"largest part: {self.coarsening.names[largest]} {_gib(memory[largest])}",
            ],
            help=self.describe_need() or "add a device, or use a smaller --batch-size",
        )


def _gib(size_bytes: float) -> str:
    value = size_bytes / 2**30
    return f"{value:.1f}" if value >= 0.1 else f"{value:.4f}"
