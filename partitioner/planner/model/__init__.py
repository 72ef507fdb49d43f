"""The model of the problem: op costs, the items (ops that share a device), the bytes that they hold."""
