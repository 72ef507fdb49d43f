"""What two busy loops get on this machine: two at once in two processes take as long as one when two cores are free."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from multiprocessing import Pool

from tests.benchmarks.turns import Contender, answer_turns

ITERATIONS = 2_000_000
BUSY_LOOPS: Mapping[str, Sequence[object]] = {"one busy loop": [__name__, 1], "two busy loops": [__name__, 2]}
"""Contenders that tell in each round how many cores were free."""


def free_rounds(found: Mapping[str, Contender], least: float) -> tuple[list[int], str]:
    """The rounds in which two busy loops got so many cores or more, and what to say of it.

    All rounds where there is no such: then they mean little.
    """
    one, two = (found[title].seconds for title in BUSY_LOOPS)
    cores = [2 * alone / both for alone, both in zip(one, two, strict=True)]
    counted = [index for index, number in enumerate(cores) if number >= least]
    text = (
        f"two busy loops got {statistics.median(cores):.2f} cores (median; {min(cores):.2f} to {max(cores):.2f}); "
        f"{len(counted)} of {len(cores)} rounds had {least:g} or more"
    )
    if counted:
        return counted, text
    return list(range(len(cores))), f"{text}: ALL rounds are shown instead, and mean little"


def _loop(iterations: int) -> int:
    total = 0
    for number in range(iterations):
        total += number * number
    return total


def main() -> None:
    """Answer each line on stdin with the seconds of so many loops at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_loops", type=int)
    num_loops = parser.parse_args().num_loops
    with Pool(num_loops) as pool:
        answer_turns(lambda: pool.map(_loop, [ITERATIONS] * num_loops, chunksize=1))


if __name__ == "__main__":
    main()
