"""The frozen types that flow from pass to pass. No TensorFlow, no solver, no behaviour beyond checking."""
