"""How a step is run in stages and microbatches: who does what, in which order. No TensorFlow, no solver."""
