"""Measured costs of ops on the devices present, from TensorFlow's own profiler."""
