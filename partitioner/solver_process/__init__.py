"""Solvers as processes of their own: OR-Tools crashes beside TensorFlow, and a search must be killable at any time.

`client.answers` asks, `__main__` is the process. Both write lines: a request is one, and its answers come one by one.
"""
