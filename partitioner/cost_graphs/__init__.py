"""Public cost graphs: read, plan, report and check them, without a model and without TensorFlow."""
