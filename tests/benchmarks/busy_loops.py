"""What two busy loops get on this machine: two at once in two processes take as long as one when two cores are free."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pool

from tests.benchmarks.turns import Contender, answer_turns, take_turns

ITERATIONS = 2_000_000
_LOOPS: Mapping[str, Sequence[object]] = {"one busy loop": [__name__, 1], "two busy loops": [__name__, 2]}
_MOST_TRIES = 3
"""Rounds, for each that is to count."""


def take_free_turns(
    contenders: Mapping[str, Sequence[object]], rounds: int, least_cores: float
) -> tuple[dict[str, Contender], str]:
    """Let contenders take turns until enough rounds had two free cores, which two busy loops that take part tell.

    Args:
        contenders: As for `take_turns`.
        rounds: How many are enough; three times as many are run at the most.
        least_cores: What two busy loops get in a round that counts.

    Returns:
        The contenders with their turns in the rounds that count, and what to say of these. All rounds count where
        fewer than a third of enough do: then they mean little.
    """
    found = take_turns(
        {**_LOOPS, **contenders},
        _MOST_TRIES * rounds,
        is_enough=lambda so_far: len(_free(so_far, least_cores)) >= rounds,
    )
    counted, cores = _free(found, least_cores), _cores(found)
    text = (
        f"two busy loops got {statistics.median(cores):.2f} cores (median; {min(cores):.2f} to {max(cores):.2f}); "
        f"{len(counted)} of {len(cores)} rounds had {least_cores:g} or more"
    )
    if _MOST_TRIES * len(counted) < rounds:
        counted, text = list(range(len(cores))), f"{text}: ALL rounds are shown instead, and mean little"
    return {
        name: replace(found[name], seconds=[found[name].seconds[index] for index in counted]) for name in contenders
    }, text


def _free(found: Mapping[str, Contender], least_cores: float) -> list[int]:
    return [index for index, cores in enumerate(_cores(found)) if cores >= least_cores]


def _cores(found: Mapping[str, Contender]) -> list[float]:
    """What two busy loops got in each round."""
    one, two = (found[title].seconds for title in _LOOPS)
    return [2 * alone / both for alone, both in zip(one, two, strict=True)]


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
