"""From TensorFlow's graph to the op graph, and its shapes for any batch size."""
