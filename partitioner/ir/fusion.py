"""Fused groups: ops that a compiler makes one kernel of, as planner and simulators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
    """Ops that run together.

    Attributes:
        ops: Their names, in graph order.
        timed: The op that has the group's seconds: its last that does something. The others take none.
        flops: Floating-point operations of all.
        moved_bytes: Bytes that enter the group or leave it, each tensor once in each pass over it.
        launches: Kernels that it takes.
    """

    ops: tuple[str, ...]
    timed: str
    flops: int
    moved_bytes: int
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """All groups of a step, and what becomes of tensors.

    Attributes:
        groups: The groups; an op is in one at the most.
        inner: Names of tensors that exist inside of a kernel only, and take no memory.
        views: For tensors that every reader computes again from another tensor, that tensor.
        known: Names of ops whose results the compiler knows, so that nothing computes them.
        adding: Names of ops whose kernels can go on with what they make, and add it to a total.
    """

    groups: tuple[FusedGroup, ...] = ()
    inner: frozenset[str] = frozenset()
    views: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    adding: frozenset[str] = frozenset()
