"""Proof that a placed model is where its plan says and computes what the unplaced model computes."""

from partitioner.verification.check import verify_placed

__all__ = ["verify_placed"]
