"""Devices of this process and of workers: set up, watched, and reported when lost."""
