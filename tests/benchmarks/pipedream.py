"""PipeDream's profiles on a few alike devices, with and without stages on several of them, beside PipeDream's planner.

    python -m tests.benchmarks.pipedream FILES... [--devices 4] [--figures FIGURES.json] [--time-limit 60]

FIGURES.json maps a file's stem to the seconds per stage that PipeDream's own planner reports. A device takes, per
batch, what its nodes compute and the values it moves in and out, forward and back, at 1 GB/s; of a stage on several
devices each takes its share of that, and of the sums of gradients. PipeDream's optimizer lets values move beside the
work and leaves them out (it looks at them only where activations are compressed): the last row of a file does so too.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from partitioner.cost_graphs.check import check_plan
from partitioner.cost_graphs.graph import CostGraph
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.cost_graphs.read import read_cost_graph
from partitioner.cost_graphs.replicated import best_replicated_chain
from partitioner.ir.devices import parse_devices


def main() -> None:
    """Print four rows for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--figures", help="JSON with what PipeDream's planner reports")
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()
    figures = json.loads(Path(options.figures).read_text()) if options.figures else {}
    print(
        f"{'profile':10} {'stages':32} {'s/batch':>9} {'bound':>9} {'gap':>7} {'seconds':>8} {'PipeDream':>10}  devices"
    )
    for file in options.files:
        graph, name = read_cost_graph(file), Path(file).stem
        for contiguous in (True, False):
            _planned(graph, name, options, contiguous=contiguous)
        for moves_values in (True, False):
            began = time.monotonic()
            stages = best_replicated_chain(graph, options.devices, moves_values=moves_values)
            kind = "replicated" if moves_values else "replicated, moving is free"
            theirs = figures.get(name) if not moves_values else None
            load = max(stage.load for stage in stages)
            shape = "-".join(f"{stage.num_devices}" for stage in stages)
            # Every chain was tried, so its load is its own bound.
            _row(name, kind, load, load, time.monotonic() - began, shape, theirs)


def _planned(graph: CostGraph, name: str, options: argparse.Namespace, *, contiguous: bool) -> None:
    devices = parse_devices(f"GPU:0-{options.devices - 1}")
    plan = plan_cost_graph(graph, devices, name=name, source=name, contiguous=contiguous, time_limit=options.time_limit)
    solver, shape = plan.solver, "-".join("1" for _ in plan.pieces)
    kind = "one device each, " + ("contiguous" if contiguous else "free")
    _row(name, kind, solver.objective, solver.lower_bound, solver.seconds, shape, None)
    for problem in check_plan(plan, graph).problems:
        print(f"  WRONG: {problem}")


def _row(name: str, kind: str, load: float, bound: float, seconds: float, shape: str, theirs: float | None) -> None:
    gap = (load - bound) / load if load else 0.0
    print(
        f"{name:10} {kind:32} {load / 1000:9.5f} {bound / 1000:9.5f} {100 * gap:6.2f}% {seconds:8.2f} "
        f"{'' if theirs is None else f'{theirs:.5f}':>10}  {shape}",
        flush=True,
    )


if __name__ == "__main__":
    main()
