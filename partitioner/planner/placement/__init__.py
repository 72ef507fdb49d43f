"""The placement of a step that runs as one graph: evaluator, simple placements, solver, local search."""
