"""What two busy loops get on this machine: two at once in two processes take as long as one when two cores are free."""

from __future__ import annotations

import argparse
from multiprocessing import Pool

from tests.benchmarks.turns import answer_turns

ITERATIONS = 2_000_000


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
