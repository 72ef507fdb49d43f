"""From a Keras model to TensorFlow's graph of one step, with the layer of each op."""
