"""What an op costs on a device: FLOPs, bytes, memory, seconds. Knows no graph, no solver and no TensorFlow."""
