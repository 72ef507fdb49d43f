"""How much of a plan's seconds rests on ops like those that were measured, not on measured ones."""

from __future__ import annotations

from partitioner.ir.costed import CostedGraph


def inferred_ops(costed: CostedGraph) -> dict[str, float]:
    """Share of the seconds on measured devices by type of op, of ops whose very shapes were not measured."""
    found: dict[str, float] = {}
    whole = sum(map(sum, costed.measured.values()))
    for position, op in enumerate(costed.graph.ops):
        seconds = sum(row[position] for row in costed.measured.values())
        if seconds > 0 and op.name not in costed.measured_ops:
            found[op.type] = found.get(op.type, 0.0) + seconds / whole
    return found
