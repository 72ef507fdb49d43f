"""Simulation of one step on its devices: seconds, memory and transfers, as one graph and as a pipeline."""
