"""Probes that run a few ops of a step: whether rows of the batch mix, and whether the loss averages."""
