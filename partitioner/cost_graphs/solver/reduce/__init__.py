"""Smaller problems with the same or a close optimum."""
