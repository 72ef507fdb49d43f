"""Which op each sum of gradients belongs to.

TensorFlow adds up the gradients of a tensor where the first of its readers differentiates: for a skip connection, where
it ends. What is added last, and what needs the sum next, are where it begins. Cut between the two, the sum would go to
the far end and come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partitioner.ir.graph_def import producer


def partners_of_sums(
    nodes: Iterable[Any], colocations: Mapping[str, str], order: Mapping[str, float]
) -> dict[str, str]:
    """For each sum of gradients, the first of the forward ops that its parts differentiate, where all are known.

    Args:
        nodes: Those of the traced graph.
        colocations: The forward op that each gradient op differentiates.
        order: Where in the step each op runs; sums of sums come after these.
    """
    found: dict[str, str] = {}
    sums = [node for node in nodes if node.op == "AddN" and node.name in colocations]
    for node in sorted(sums, key=lambda node: order[node.name]):
        parts = [producer(reference) for reference in node.input if not reference.startswith("^")]
        partners = [found.get(part) or colocations.get(part, "") for part in parts]
        known = [partner for partner in partners if partner in order]
        if known and len(known) == len(parts):
            found[node.name] = min(known, key=order.__getitem__)
    return found
