"""Replicas that update shared variables without waiting for each other."""
