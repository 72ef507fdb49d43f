"""What was found, written as a plan."""
