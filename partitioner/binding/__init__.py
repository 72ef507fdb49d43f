"""A plan applied to a traced step: the step it was made from, and the device of each op there."""
