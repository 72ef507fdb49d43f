"""Lower bounds on the step time over all placements."""
