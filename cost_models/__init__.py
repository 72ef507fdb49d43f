"""The cost of an op on a device: FLOPs, bytes, memory, seconds. Independent of graphs, solvers and TensorFlow."""
