"""What ops really take on the devices present: read from TensorFlow's own profiler."""
