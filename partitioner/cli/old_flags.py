"""Removed flags of earlier versions, each with its replacement. Kept for one release."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from partitioner.errors import UsageError

OLD_FLAGS = {
    "--list-hardware": "partition hardware",
    "--check": "partition check PLAN for the plan of a cost graph, partition verify PLAN MODEL for that of a model",
    "--workload": "partition check PLAN --workload FILE",
    "--training": "leave it out: a training step is what is planned by default; --inference plans inference",
    "--work-limit": "partition graph FILE --work-limit WORK; of a model, --time-limit ends the search",
    "--contiguous": "partition graph FILE --contiguous; the stages of a model always are",
    "--objective latency": "--objective throughput, the least time of a step; of one input: --inference --batch-size 1",
}
"""The replacement, by flag or by flag and value."""


def refuse_old_flags(arguments: Sequence[str], current: Collection[str]) -> None:
    """Refuse removed flags, and name the replacement.

    Args:
        arguments: Arguments of the command line.
        current: Flags of the sub-command, which are not refused.

    Raises:
        UsageError: There is a removed flag.
    """
    for index, text in enumerate(arguments):
        flag, equals, value = text.partition("=")
        if not equals:
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
        for old in (flag, f"{flag} {value}"):
            if old in OLD_FLAGS and old not in current:
                raise UsageError(f"{old} is no option any more", help=OLD_FLAGS[old])
