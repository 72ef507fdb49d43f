"""Public cost graphs: read, planned, reported and checked without a model and without TensorFlow."""
