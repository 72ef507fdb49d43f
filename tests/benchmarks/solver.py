"""Objective, bound, gap and seconds of the max-load solver on cost graphs, beside figures of others.

    python -m tests.benchmarks.solver FILES... [--figures FIGURES.json] [--time-limit 60] [--only free|contiguous]
    python -m tests.benchmarks.solver FILES... --golden tests/golden/workloads.json

FIGURES.json maps a file's stem to `{"contiguous": best known, "free": best known, "free_bound": best known bound}`.
Every plan is checked by the code that shares nothing with the solver before its row is printed. With --golden, a line
WORSE follows where an objective that was proved differs, or where another one or its bound is worse by more than 1 %;
files that say nothing of devices are then planned for those of the golden figures.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partitioner.cost_graphs.check import check_plan
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.cost_graphs.read import read_cost_graph
from partitioner.ir.devices import parse_devices
from partitioner.ir.plan import SolverInfo

_ROUNDING = 1e-5


def main() -> None:
    """Print a row for each file and kind of pieces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--figures", help="JSON with the figures of others")
    parser.add_argument("--golden", help="JSON with figures of ours that must not become worse")
    parser.add_argument("--devices", help="in place of the files' own")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--work-limit", type=float, help="where the clock cannot be trusted: a fast minute is 60")
    parser.add_argument("--only", choices=["free", "contiguous"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = json.loads(Path(options.figures).read_text()) if options.figures else {}
    golden = json.loads(Path(options.golden).read_text()) if options.golden else {}
    print(
        f"{'cost graph':28} {'pieces':10} {'status':10} {'objective':>11} {'bound':>11} {'gap':>7} {'seconds':>8} "
        f"{'CPU s':>7} {'theirs':>11} {'their bound':>11}"
    )
    for file in options.files:
        for pieces in ("contiguous", "free"):
            if options.only in (None, pieces):
                stem = Path(file).stem
                _row(file, pieces, figures.get(stem, {}), golden.get(stem, {}), options)


def _row(file: str, pieces: str, theirs: dict[str, float], golden: dict[str, Any], options: argparse.Namespace) -> None:
    graph = read_cost_graph(file)
    devices = options.devices or golden.get("devices")
    before = _child_seconds()
    plan = plan_cost_graph(
        graph,
        parse_devices(devices) if devices else [],
        name=Path(file).stem,
        source=file,
        contiguous=pieces == "contiguous",
        time_limit=options.time_limit,
        work_limit=options.work_limit,
        seed=options.seed,
    )
    cpu = _child_seconds() - before
    problems = check_plan(plan, graph).problems
    solver = plan.solver
    known = [f"{theirs[key]:11.5f}" if key in theirs else f"{'':11}" for key in (pieces, f"{pieces}_bound")]
    print(
        f"{Path(file).stem:28} {pieces:10} {solver.status:10} {solver.objective:11.5f} {solver.lower_bound:11.5f} "
        f"{100 * solver.gap:6.2f}% {solver.seconds:8.1f} {cpu:7.1f} {' '.join(known)}"
        + "".join(f"\n  WRONG: {problem}" for problem in problems)
        + "".join(f"\n  WORSE: {line}" for line in _worse(solver, golden.get(pieces))),
        flush=True,
    )


def _worse(solver: SolverInfo, golden: dict[str, Any] | None) -> Iterator[str]:
    """What is not as it was: golden figures have five decimals."""
    if golden is None:
        return
    status, objective, bound = golden["status"], golden["objective"], golden["bound"]
    if status == "optimal" and abs(solver.objective - objective) > _ROUNDING + 1e-6 * objective:
        yield f"the objective is {solver.objective:.5f}, {objective:.5f} was proved"
    if status != "optimal" and solver.objective > 1.01 * objective:
        yield f"the objective is {solver.objective:.5f}, it was {objective:.5f}"
    if status != "optimal" and solver.lower_bound < 0.99 * bound:
        yield f"the bound is {solver.lower_bound:.5f}, it was {bound:.5f}"


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
