"""The step as a pipeline: where stages are cut, how many microbatches, which schedule, what is recomputed."""
