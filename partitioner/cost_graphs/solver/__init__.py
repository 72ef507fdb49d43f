"""The max-load solver for cost graphs: a portfolio in a process of its own, called by `client.solve`.

Only the child's modules import OR-Tools: once TensorFlow is loaded into a process, CP-SAT crashes in it.
"""
