"""Compile what a device runs: parts of an emitted graph become functions that XLA compiles."""
