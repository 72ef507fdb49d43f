"""Pins, forbidden devices and colocation: what they match, and which of them contradict each other."""
