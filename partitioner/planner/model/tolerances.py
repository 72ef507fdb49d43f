"""Tolerances: differences below which estimates count as equal."""

from __future__ import annotations

ALIKE = 0.01
"""Step times within this share of each other count as equally fast, because estimates are not that exact."""
AS_FAST = 1 + ALIKE
"""Candidates at most this many times as slow as the fastest count as equally fast; the simplest is preferred."""
SLIGHTLY = 1.002
"""Of cuts in one piece, one that may be this many times as fast as the best is looked at, and one that is is chosen."""
BALANCE_PERMILLE = round(1000 * ALIKE)
"""The same for the solver, which counts in whole numbers."""
AS_ESTIMATED = 1.1
"""Simulations of cuts may end this many times before their estimates, as transfers may hide behind other work, or after
them."""
LEAST_GAIN = 0.05
"""Share by which more devices must be predicted to be faster than one: predicted ratios of steps on two devices and on
one have been wrong by as much (`tests/benchmarks/RESULTS.md`)."""
PEAK_ROOM = 1.1
"""Of placements that are equally fast, those with a largest peak at most this many times the least are compared."""
ROUNDING = 1e-9
"""Two results of the same sums in another order differ by this share at most."""
