"""Seconds, memory and gap of planning against the size of the graph and the number of devices.

    python -m tests.benchmarks.scaling [--ops 1000,10000,100000] [--devices 2,8,64,512] [--time-limit 30] [--contiguous]

The graphs have the structure of a training step of a Transformer of 96 layers: ops in a row with skip connections, a
backward op for each forward op that reads what that one saved, and an update for each. Seconds are from the cost graph
in memory to the plan, the solver's process and its start included; memory is the peak of this process and the solver's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time
from multiprocessing.connection import Connection

from partitioner.cost_graphs.check import check_plan
from partitioner.cost_graphs.graph import CostGraph, CostNode, CostValue
from partitioner.cost_graphs.plan import plan_cost_graph
from partitioner.ir.devices import parse_devices

_LAYERS = 96
_GIB = 2**30


def transformer(num_ops: int, seed: int = 0) -> CostGraph:
    """About so many ops, in ms; of four ops in a layer one is a product that takes 20 times as long as the others."""
    draw = random.Random(seed)
    width = max(4, num_ops // (3 * _LAYERS))
    nodes: list[CostNode] = []
    readers: dict[str, list[str]] = {}

    def add(name: str, cost: float, *sources: str, held: float = 0.0, is_backward: bool = False) -> str:
        nodes.append(
            CostNode(id=name, accelerator_cost=cost, cpu_cost=20 * cost, memory_bytes=held, is_backward=is_backward)
        )
        for source in sources:
            readers.setdefault(source, []).append(name)
        return name

    costs = {
        (layer, op): (20.0 if op % 4 == 0 else 1.0) * draw.uniform(0.8, 1.2)
        for layer in range(_LAYERS)
        for op in range(width)
    }
    last, entered = add("input", 0.0), "input"
    for layer in range(_LAYERS):
        entered = last
        for op in range(width):
            # Every fourth op also reads what entered the layer, as skip connections do.
            skip = (entered,) if op % 4 == 3 and entered != last else ()
            last = add(f"forward_{layer}_{op}", costs[layer, op], last, *skip, held=4.0)
    last = add("loss", 1.0, last)
    for layer in reversed(range(_LAYERS)):
        for op in reversed(range(width)):
            saved = f"forward_{layer}_{op}"
            last = add(f"backward_{layer}_{op}", 2 * costs[layer, op], last, saved, is_backward=True)
            add(f"update_{layer}_{op}", 0.2, last, is_backward=True)
    values = [CostValue(source=source, targets=tuple(to), cost=0.5, size_bytes=4.0) for source, to in readers.items()]
    return CostGraph(nodes=tuple(nodes), values=tuple(values))


def main() -> None:
    """Print a row for each size and number of devices; each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="1000,10000,100000")
    parser.add_argument("--devices", default="2,8,64,512")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--contiguous", action="store_true")
    options = parser.parse_args()
    print(
        f"{'ops':>8} {'devices':>8} {'seconds':>8} {'CPU s':>7} {'peak GiB':>9} {'objective':>12} {'gap':>7}  found by"
    )
    for ops in map(int, options.ops.split(",")):
        for devices in map(int, options.devices.split(",")):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_row, args=(ops, devices, options.time_limit, options.contiguous, theirs)
            )
            process.start()
            print(ours.recv(), flush=True)
            process.join()


def _row(ops: int, devices: int, time_limit: float, contiguous: bool, answers: Connection) -> None:
    graph = transformer(ops)
    began = time.monotonic()
    fields = plan_cost_graph(
        graph,
        parse_devices(f"GPU:0-{devices - 1}"),
        name=f"transformer-{ops}",
        source="made",
        contiguous=contiguous,
        time_limit=time_limit,
    )
    seconds = time.monotonic() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    peak = sum(one.ru_maxrss for one in used) * 1024 / _GIB
    plan = fields
    # The check tries moves one by one, which takes long for many groups; small graphs are checked whole.
    problems = check_plan(plan, graph).problems if ops <= 1000 else ()
    answers.send(
        f"{len(graph.nodes):8,} {devices:8} {seconds:8.1f} {cpu:7.1f} {peak:9.2f} {plan.solver.objective:12.5g} "
        f"{100 * plan.solver.gap:6.2f}%  {plan.solver.method}" + "".join(f"\n  WRONG: {one}" for one in problems)
    )


if __name__ == "__main__":
    main()
