"""A plan's document from a placement made by hand, and two layers in training as its subject."""

from __future__ import annotations

from graphs import link, topology, training_chain

from partitioner.ir.costed import CostedGraph
from partitioner.ir.plan import DeviceInfo, ModelInfo, Objective, Origin, PlanDocument, SolverInfo, Strategy
from partitioner.planner.document.assemble import plan_document
from partitioner.planner.layouts.result import SearchResult
from partitioner.planner.model.coarsen import coarsen
from partitioner.planner.simulate.unpipelined import simulate

MODEL = ModelInfo(source="", name="model", fingerprint="", num_ops=0, num_parameters=0, batch_size=1, training=True)


def found_at(costed: CostedGraph, placement: dict[str, int]) -> SearchResult:
    return SearchResult(
        placement=placement,
        schedule=simulate(costed, placement),
        coarsening=coarsen(costed),
        baselines=(),
        solver=SolverInfo(status="feasible", objective=1, lower_bound=1, gap=0, seconds=0, seed=0),
        notes=("from the search",),
    )


def plan_of(costed: CostedGraph, placement: dict[str, int]) -> PlanDocument:
    infos = [
        DeviceInfo(name=placed.name, hardware="test", origin=Origin.ASSUMED, memory_bytes=placed.memory_bytes)
        for placed in costed.topology.devices
    ]
    return plan_document(
        costed,
        found_at(costed, placement),
        infos,
        model=MODEL,
        requested=Strategy.AUTO,
        objective=Objective.THROUGHPUT,
    )


def split_training() -> tuple[CostedGraph, dict[str, int]]:
    """Two layers, the first on GPU:1 with its backward and update ops, the rest on GPU:0."""
    made = training_chain(2, parameter_bytes=1024, slot_bytes=512, saved_bytes=256)
    costed = made.costed(topology(2, wire=link(0.0, 2.0**40)))
    first = {"x", "f0", "b0", "d0", "u0"}
    return costed, {op.name: int(op.name in first) for op in made.ops}
