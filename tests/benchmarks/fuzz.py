"""Fuzz a format for some minutes: `python -m tests.benchmarks.fuzz plan --minutes 3 --seed 0`.

Prints how many cases there were, how many had a right syntax, how many had a result, and each failure with its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzzing import FORMATS, Outcome, outcome_of

MOST_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=FORMATS)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each case has the next")
    options = parser.parse_args()
    began, seed = time.monotonic(), options.seed
    parsed = accepted = 0
    failures: dict[str, tuple[int, Outcome]] = {}
    times_of = Counter[str]()
    while time.monotonic() - began < 60 * options.minutes:
        outcome = outcome_of(options.kind, seed)
        parsed += outcome.parsed
        accepted += outcome.accepted
        if outcome.failure:
            where = [line for line in outcome.failure.splitlines() if line.startswith("  File ")][-1:]
            kind = "\n".join([*where, *outcome.failure.strip().splitlines()[-1:]])[:400]
            failures.setdefault(kind, (seed, outcome))
            times_of[kind] += 1
        seed += 1
    count = seed - options.seed
    print(f"{options.kind}: {count} cases, {parsed} past parsing ({parsed / count:.0%}), {accepted} with a result")
    print(f"{sum(times_of.values())} failures of {len(failures)} kinds")
    for kind, times in times_of.most_common(MOST_SHOWN):
        first, outcome = failures[kind]
        print(f"\n{times} times, first with seed {first}:\n{outcome.failure[-1500:]}\n{outcome.text[:300]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
