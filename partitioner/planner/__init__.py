"""From an op graph and a topology to a plan."""
