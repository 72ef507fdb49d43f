"""Contiguous placements: each device gets a piece of a chain; dynamic programs and a CP-SAT model prove the optimum."""
