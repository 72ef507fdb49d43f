"""Proof that a placed model runs on its planned devices and computes what the unplaced model computes."""

from partitioner.verification.check import verify_placed

__all__ = ["verify_placed"]
