"""The share of a plan's seconds whose ops were inferred from similar measured ops."""

from __future__ import annotations

from partitioner.ir.costed import CostedGraph


def inferred_ops(costed: CostedGraph) -> dict[str, float]:
    """Share of the seconds on measured devices, by op type, of ops whose shapes were not measured."""
    shares: dict[str, float] = {}
    whole = sum(map(sum, costed.measured.values()))
    for position, op in enumerate(costed.graph.ops):
        seconds = sum(row[position] for row in costed.measured.values())
        if seconds > 0 and op.name not in costed.measured_ops:
            shares[op.type] = shares.get(op.type, 0.0) + seconds / whole
    return shares
