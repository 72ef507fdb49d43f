"""Graph-level partitioning of Keras models over devices."""
