"""The model of the problem: op costs, the items that are placed as one, the bytes that they hold."""
