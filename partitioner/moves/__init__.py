"""Moves: changes of a request that gain, generated from what limits its plan; each is planned before it is named."""
