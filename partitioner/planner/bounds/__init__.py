"""What no placement can be faster than."""
