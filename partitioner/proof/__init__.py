"""Proof that a plan for a cost graph is what it says, by code that shares nothing with the solver."""
