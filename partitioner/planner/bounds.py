"""Lower bounds on a step of the op graph as traced: no placement of any kind can be simulated faster."""

from __future__ import annotations

from partitioner.ir.costed import CostedGraph


def lower_bound_seconds(costed: CostedGraph) -> float:
    """The larger of two relaxations (Graham, "Bounds on multiprocessing timing anomalies", 1969).

    Critical path: every op on its fastest device, transfers free, devices unlimited. Work: all ops spread
    evenly over all devices, each as fast as on its fastest.
    """
    graph = costed.graph
    fastest = [min(seconds) for seconds in costed.seconds]
    end: dict[str, float] = {}
    for op, seconds in zip(graph.ops, fastest, strict=True):
        before = [end[graph.tensor[name].producer] for name in op.inputs] + [end[name] for name in op.control_inputs]
        end[op.name] = seconds + max(before, default=0.0)
    return max(max(end.values(), default=0.0), sum(fastest) / len(costed.topology.devices))
