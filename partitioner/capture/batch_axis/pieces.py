"""Ops that put tensors together, cut them up, or repeat them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total, Uniform
from partitioner.capture.batch_axis.linear import added
from partitioner.capture.batch_axis.site import Site, rule, unchanged
from partitioner.capture.batch_axis.sizes import Size, is_whole


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
        return unchanged(site)
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
