"""The placed step as a Keras model: compile, fit, save, load."""
