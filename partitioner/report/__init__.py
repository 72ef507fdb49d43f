"""The report of a plan: text and pictures, made from plan.json alone. No TensorFlow, no solver."""
