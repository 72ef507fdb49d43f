"""Ops that move entries: reshapes, transposes, slices, concatenations, tiles and pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any


from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total, Uniform
from partitioner.capture.batch_axis.linear import added
from partitioner.capture.batch_axis.sizes import Size, is_whole, product
from partitioner.capture.batch_axis.site import Site, rule


@rule("Reshape")
def reshape(site: Site) -> Flow:
    """The rows are where the new shape has the same number of entries before and after them."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return _unchanged(site)
    return _reshaped(value, site.shape(0), list(site.numbers(1).flat))


@rule("ExpandDims")
def expand(site: Site) -> Flow:
    """A new axis of size 1."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return _unchanged(site)
    axis = site.constants(1)[0] % (site.rank(0) + 1)
    return replace(value, axis=value.axis + (axis <= value.axis))


@rule("Squeeze")
def squeeze(site: Site) -> Flow:
    """Axes of size 1 go; that of the rows stays, as it has any size."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return _unchanged(site)
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
    return replace(value, axis=site.axes(1).index(value.axis)) if isinstance(value, Apart) else _unchanged(site)


@rule("ReverseV2", "Roll")
def turn(site: Site) -> Flow:
    """Another order along some axes."""
    value = site.flows[0]
    if isinstance(value, Apart) and value.axis in site.axes(1 if site.op.type == "ReverseV2" else 2):
        raise Mixes
    return _unchanged(site)


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


@rule("ConcatV2", "Pack")
def join(site: Site) -> Flow:
    """Tensors one after the other, along an axis that may be new. Along the rows, all rows come several times."""
    is_pack = site.op.type == "Pack"
    flows = site.flows if is_pack else site.flows[:-1]
    degree = added([replace(f, numbers=None) if isinstance(f, Uniform) else f for f in flows], site.origin)
    if not degree.has_rows:
        return degree.on(None)
    layouts = {(f.axis, f.minor) for f in flows if isinstance(f, Apart)}
    if len(layouts) != 1:
        raise Mixes
    place, minor = layouts.pop()
    axis = site.attr("axis") % (site.rank(0) + 1) if is_pack else site.constants(len(flows))[0] % site.rank(0)
    majors = [f.major for f in flows if isinstance(f, Apart)]
    if not is_pack and axis == place and len(majors) == len(flows):
        return degree.on(Apart(place, sum(majors), minor))
    if len(set(majors)) > 1 or len(majors) < len(flows):
        raise Mixes
    return degree.on(Apart(place + (is_pack and axis <= place), majors[0], minor))


@rule("Split", "SplitV", "Unpack")
def cut_up(site: Site) -> Flow:
    """Parts along an axis; along the rows, whole repetitions of them."""
    kind = site.op.type
    value = site.flows[1 if kind == "Split" else 0]
    if not isinstance(value, Apart):
        return value if isinstance(value, Total) else Uniform(value.power, None, value.origin)  # type: ignore[union-attr]
    if kind == "Unpack":
        axis = site.attr("axis") % site.rank(0)
        if axis == value.axis:
            raise Mixes
        return replace(value, axis=value.axis - (axis < value.axis))
    axis = site.axes(0, of=1)[0] if kind == "Split" else site.axes(2)[0]
    if axis != value.axis:
        return value
    parts = len(site.op.outputs)
    if kind == "SplitV" or value.major % parts:
        raise Mixes
    return replace(value, major=value.major // parts)


@rule("Slice")
def cut_out(site: Site) -> Flow:
    """A part along each axis."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else _unchanged(site)
    begin, size = site.numbers(1).flat[value.axis], site.numbers(2).flat[value.axis]
    return _range(value, begin, value.rows if size == Size(-1) else begin + size)


@rule("StridedSlice")
def cut_steps(site: Site) -> Flow:
    """A part along each axis, as NumPy writes it."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else _unchanged(site)
    axis, place = 0, 0
    for index in slices(site):
        if index is Ellipsis:
            break
        if index is None:
            place += 1
        elif axis == value.axis:
            return _strided(value, index, place)
        else:
            place += isinstance(index, slice)
            axis += 1
    else:
        return replace(value, axis=place + value.axis - axis)
    # Behind the ellipsis, axes are counted from the end.
    axis, place = site.rank(0) - 1, 0
    for index in reversed(slices(site)):
        if index is Ellipsis:
            break
        if index is None:
            place += 1
        elif axis == value.axis:
            moved = _strided(value, index, 0)
            return replace(moved, axis=site.op.outputs[0].shape.rank - 1 - place)
        else:
            place += isinstance(index, slice)
            axis -= 1
    return replace(value, axis=site.op.outputs[0].shape.rank - 1 - place - (axis - value.axis))


def slices(site: Site) -> list[Any]:
    """The index of a StridedSlice as in Python: slices of Sizes, Sizes, None for a new axis, and an ellipsis."""
    begin, end, step = (site.numbers(index).flat for index in (1, 2, 3))
    masks = {name: site.attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    result: list[Any] = []
    for place, (first, last, stride) in enumerate(zip(begin, end, step, strict=True)):
        bits = {name for name, mask in masks.items() if mask >> place & 1}
        if "ellipsis" in bits:
            result.append(Ellipsis)
        elif "new_axis" in bits:
            result.append(None)
        elif "shrink_axis" in bits:
            result.append(first)
        else:
            result.append(slice(None if "begin" in bits else first, None if "end" in bits else last, stride))
    return result


def _strided(value: Apart, index: Any, place: int) -> Apart:
    if not isinstance(index, slice) or index.step != Size(1):
        raise Mixes
    begin = Size(0) if index.start is None else index.start
    end = value.rows if index.stop is None else index.stop
    return replace(_range(value, begin, end), axis=place)


def _range(value: Apart, begin: Size, end: Size) -> Apart:
    """What is left of the axis of the rows: whole repetitions."""
    first, last = begin / Size(value.minor, 1), end / Size(value.minor, 1)
    whole = all(is_whole(one) and (one.power == 0 or one.count == 0) for one in (first, last))
    if not whole or not 0 <= first.count < last.count <= value.major:
        raise Mixes
    return replace(value, major=int(last.count - first.count))


@rule("Pad", "PadV2", "MirrorPad")
def pad(site: Site) -> Flow:
    """More entries before and behind."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else _unchanged(site)
    before_and_behind = site.numbers(1)[value.axis]
    if any(number != Size(0) for number in before_and_behind) or (value.power and site.op.type == "PadV2"):
        raise Mixes
    return value


@rule("Tile")
def tile(site: Site) -> Flow:
    """Repetitions along each axis; b of them make a row each."""
    value, times = site.flows[0], list(site.numbers(1).flat)
    by_row = [axis for axis, number in enumerate(times) if number.power]
    if isinstance(value, Apart):
        if by_row or not is_whole(times[value.axis]):
            raise Mixes
        return replace(value, major=value.major * int(times[value.axis].count))
    if not by_row:
        return _unchanged(site)
    if not site.is_constant(0) or len(by_row) > 1 or times[by_row[0]].power != 1:
        raise Mixes(_origin(value))
    repeated = times[by_row[0]] * site.shape(0)[by_row[0]]
    if not is_whole(repeated):
        raise Mixes
    return Apart(by_row[0], minor=int(repeated.count))


@rule("BroadcastTo")
def broadcast_to(site: Site) -> Flow:
    """A value for a given shape."""
    value, shape = site.flows[0], list(site.numbers(1).flat)
    if isinstance(value, Apart):
        axis = len(shape) - site.rank(0) + value.axis
        if shape[axis] != value.rows or any(size.power for place, size in enumerate(shape) if place != axis):
            raise Mixes
        return replace(value, axis=axis)
    return rows_of_shape(shape, value)


def rows_of_shape(shape: Sequence[Size], value: Flow) -> Flow:
    """A tensor with such a shape of one value: it has rows if a size depends on them."""
    places = [axis for axis, size in enumerate(shape) if size.power or not size.is_known]
    if not places:
        return replace(value, numbers=None) if isinstance(value, Uniform) else value
    size = shape[places[0]]
    if len(places) > 1 or size.power != 1 or not is_whole(size):
        raise Mixes(_origin(value))
    if not isinstance(value, Uniform) or value.power is None:
        raise Mixes(_origin(value))
    return Apart(places[0], minor=int(size.count), power=value.power, origin=value.origin)


def _origin(value: Flow) -> Any:
    return getattr(value, "origin", None)


def _unchanged(site: Site) -> Flow:
    """For inputs without rows: the same entries, or some of them, in another shape."""
    value = site.flows[0]
    others = [flow for flow in site.rest if not isinstance(flow, Uniform)]
    if others:
        raise Mixes
    if isinstance(value, Uniform):
        bent = [flow for flow in site.flows if isinstance(flow, Uniform) and flow.power != 0]
        power = value.power if all(site.is_constant(i) for i in range(1, len(site.flows))) else None
        return Uniform(power, None, bent[0].origin if bent else None)
    return value


