"""From a model file to an op graph: the only readers of Keras models and of TensorFlow's graphs."""
