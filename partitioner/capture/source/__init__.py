"""From `PATH[:NAME]` to a Keras model."""
