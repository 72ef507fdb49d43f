"""What an op costs on a device: FLOPs, bytes, memory, seconds. Knows no graph, solver or TensorFlow."""
