"""The command line: `partition MODEL --devices ...`, from a model file to a placed model."""

from partitioner.cli.main import main

__all__ = ["main"]
