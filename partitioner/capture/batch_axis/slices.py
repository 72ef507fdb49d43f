"""Slices and pads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total
from partitioner.capture.batch_axis.site import Site, rule, unchanged
from partitioner.capture.batch_axis.sizes import Size, is_whole


@rule("Slice")
def cut_out(site: Site) -> Flow:
    """A part along each axis."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else unchanged(site)
    begin, size = site.numbers(1).flat[value.axis], site.numbers(2).flat[value.axis]
    return _range(value, begin, value.rows if size == Size(-1) else begin + size)


@rule("StridedSlice")
def cut_steps(site: Site) -> Flow:
    """A part along each axis, as NumPy writes it."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else unchanged(site)
    axis, place = 0, 0
    for index in index_of(site):
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
    for index in reversed(index_of(site)):
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


def index_of(site: Site) -> list[Any]:
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
    whole = all(is_whole(index) and (index.power == 0 or index.count == 0) for index in (first, last))
    if not whole or not 0 <= first.count < last.count <= value.major:
        raise Mixes
    return replace(value, major=int(last.count - first.count))


@rule("Pad", "PadV2", "MirrorPad")
def pad(site: Site) -> Flow:
    """More entries before and behind."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only() if isinstance(value, Total) else unchanged(site)
    before_and_behind = site.numbers(1)[value.axis]
    if any(number != Size(0) for number in before_and_behind) or (value.power and site.op.type == "PadV2"):
        raise Mixes
    return value


@rule("XlaDynamicUpdateSlice")
def overwrite(site: Site) -> Flow:
    """A tensor with another one in the place of a part of it, which has all of its rows."""
    value, update = site.flows[:2]
    if not site.apart:
        return site.only()
    if value != update or site.numbers(2).flat[site.apart[0].axis] != Size(0):
        raise Mixes
    return value


@rule("XlaDynamicSlice")
def cut_part(site: Site) -> Flow:
    """A part along each axis, with all rows."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only()
    if site.numbers(1).flat[value.axis] != Size(0) or site.numbers(2).flat[value.axis] != value.rows:
        raise Mixes
    return value
