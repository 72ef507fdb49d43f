"""A traced step as a function with a device on every op, and its variables on their planned devices."""
