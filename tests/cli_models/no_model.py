"""Numbers only."""

ANSWER = 42
