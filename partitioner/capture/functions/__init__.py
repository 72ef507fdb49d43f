"""What is inside loops, branches and calls: shapes, trips, buffers."""
