"""Stages, stage programs and schedules of a step in microbatches. No TensorFlow, no solver."""
