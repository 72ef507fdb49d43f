"""Devices of this process and of workers: set up, watched, and told when lost."""
