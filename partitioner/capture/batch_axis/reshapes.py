"""Ops that keep all entries: reshapes, transposes and reversals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Uniform
from partitioner.capture.batch_axis.site import Site, rule, unchanged
from partitioner.capture.batch_axis.sizes import Size, is_whole, product


@rule("Reshape")
def reshape(site: Site) -> Flow:
    """The rows are where the new shape has the same number of entries before and after them."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return unchanged(site)
    return _reshaped(value, site.shape(0), list(site.numbers(1).flat))


@rule("ExpandDims")
def expand(site: Site) -> Flow:
    """A new axis of size 1."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return unchanged(site)
    axis = site.constants(1)[0] % (site.rank(0) + 1)
    return replace(value, axis=value.axis + (axis <= value.axis))


@rule("Squeeze")
def squeeze(site: Site) -> Flow:
    """Axes of size 1 go; that of the rows stays, as it has any size."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return unchanged(site)
    shape = site.shape(0)
    axes = [axis % len(shape) for axis in site.attr("squeeze_dims")] or [a for a, s in enumerate(shape) if s == Size(1)]
    if value.axis in axes:
        raise Mixes
    return replace(value, axis=value.axis - sum(axis < value.axis for axis in axes))


def _reshaped(value: Apart, before: Sequence[Size], after: list[Size]) -> Apart:
    """Where the rows are in the new shape: entries are counted in row-major order."""
    after = filled(before, after)
    places = [axis for axis, size in enumerate(after) if size.power == 1]
    if len(places) != 1 or not all(size.is_known for size in (*before, *after)):
        raise Mixes
    axis = places[0]
    if not is_whole(after[axis]):
        raise Mixes(grouped=f"it takes rows in groups of {Fraction(after[axis].count).denominator}")
    outer = product(before[: value.axis]).count * value.major
    inner = product(before[value.axis + 1 :]).count * value.minor
    major = Fraction(outer) / Fraction(product(after[:axis]).count or 1)
    minor = Fraction(inner) / Fraction(product(after[axis + 1 :]).count or 1)
    if major.denominator != 1 or minor.denominator != 1 or major * minor != after[axis].count:
        raise Mixes
    return replace(value, axis=axis, major=int(major), minor=int(minor))


def filled(before: Sequence[Size], after: list[Size]) -> list[Size]:
    """A new shape with its size of -1, if any, computed from the number of entries."""
    if Size(-1) not in after:
        return after
    rest = product(size for size in after if size != Size(-1))
    return [product(before) / rest if size == Size(-1) else size for size in after]


@rule("Transpose", "ConjugateTranspose")
def transpose(site: Site) -> Flow:
    """Axes in another order."""
    value = site.flows[0]
    return replace(value, axis=site.axes(1).index(value.axis)) if isinstance(value, Apart) else unchanged(site)


@rule("ReverseV2", "Roll")
def turn(site: Site) -> Flow:
    """Another order along some axes."""
    value = site.flows[0]
    if isinstance(value, Apart) and value.axis in site.axes(1 if site.op.type == "ReverseV2" else 2):
        raise Mixes
    return unchanged(site)


@rule("ReverseSequence")
def turn_parts(site: Site) -> Flow:
    """Another order along one axis, for each index of another one by itself."""
    value, lengths = site.flows[:2]
    if isinstance(value, Apart):
        is_batch = value.axis == site.attr("batch_dim") and lengths in (Uniform(), Apart(0, value.major, value.minor))
        if value.axis == site.attr("seq_dim") or not (is_batch or site.is_constant(1)):
            raise Mixes
        return value
    return site.only()
