"""Ops that look entries up by index."""

from __future__ import annotations

from dataclasses import replace

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total, Uniform
from partitioner.capture.batch_axis.linear import mapped
from partitioner.capture.batch_axis.site import Site, plain, rule


@rule("GatherV2", "Gather")
def gather(site: Site) -> Flow:
    """Entries along one axis; leading axes may be shared by both inputs."""
    shared = site.attr("batch_dims") % max(site.rank(1), 1) if site.op.type == "GatherV2" else 0
    axis = site.axes(2)[0] if site.op.type == "GatherV2" else 0
    return gathered(site, axis, shared)


@rule("ResourceGather")
def gather_variable(site: Site) -> Flow:
    """Entries along the first axis of a variable."""
    return plain(site.flows[1])


def gathered(site: Site, axis: int, shared: int) -> Flow:
    """The result has the axes of the first input with `axis` replaced by those of the second that are not shared."""
    params, indices = site.flows[:2]
    if not isinstance(params, Apart) and not isinstance(indices, Apart):
        mapped((indices,), site.origin)
        return params if isinstance(params, Total) and site.is_constant(1) else site.only()
    if isinstance(indices, Apart):
        plain(indices)
    places = set()
    if isinstance(params, Apart):
        if params.axis == axis:
            raise Mixes
        moved = site.rank(1) - shared - 1 if params.axis > axis else 0
        places.add((params.axis + moved, params.major, params.minor))
        if not isinstance(indices, Apart) and (params.axis < shared or not site.is_constant(1)):
            raise Mixes
    if isinstance(indices, Apart):
        place = indices.axis if indices.axis < shared else indices.axis - shared + axis
        places.add((place, indices.major, indices.minor))
        if not isinstance(params, Apart) and (indices.axis < shared or not site.is_constant(0)):
            raise Mixes
    both_shared = all(isinstance(f, Apart) and f.axis < shared for f in (params, indices))
    if len(places) > 1 or (isinstance(params, Apart) and isinstance(indices, Apart) and not both_shared):
        raise Mixes
    place, major, minor = places.pop()
    power = params.power if isinstance(params, Apart) else 0
    return Apart(place, major, minor, power, params.origin if isinstance(params, Apart) else None)


@rule("GatherNd", "ResourceGatherNd")
def gather_points(site: Site) -> Flow:
    """Entries at points, whose coordinates are along the last axis of the second input."""
    params, indices = site.flows[:2]
    last = site.rank(1) - 1
    if isinstance(indices, Apart):
        if not site.is_constant(0) or indices.axis == last:
            raise Mixes
        return plain(indices)
    depth = site.op.inputs[1].shape[-1]
    if not isinstance(params, Apart):
        return site.only()
    if depth is None or params.axis < depth or not site.is_constant(1):
        raise Mixes
    return replace(params, axis=last + params.axis - depth)


@rule("OneHot")
def one_hot(site: Site) -> Flow:
    """A new axis of classes."""
    value = plain(site.flows[0])
    if not site.is_constant(1, 2, 3):
        raise Mixes
    if not isinstance(value, Apart):
        return Uniform(value.power if isinstance(value, Uniform) else None, None, getattr(value, "origin", None))
    axis = site.attr("axis") % (site.rank(0) + 1)
    return replace(value, axis=value.axis + (axis <= value.axis))


@rule("LookupTableFindV2", "LookupTableFind")
def look_up(site: Site) -> Flow:
    """Each entry in a table."""
    return plain(site.flows[1])


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "InTopK", "InTopKV2")
def compare_with_classes(site: Site) -> Flow:
    """A number for each first index of logits and labels."""
    return first_axis(site, inputs=(0, 1))


def first_axis(site: Site, inputs: tuple[int, ...]) -> Flow:
    """What each first index of these inputs gives by itself; other inputs are the same for all."""
    by_row = [site.flows[index] for index in inputs]
    rows = [plain(flow) for flow in by_row if isinstance(flow, Apart)]
    others = [index for index in range(len(site.flows)) if not isinstance(site.flows[index], Apart)]
    if not site.is_constant(*others):
        raise Mixes
    if not rows:
        return site.only()
    if len(site.apart) != len(rows) or len(set(rows)) > 1 or rows[0].axis != 0:  # type: ignore[union-attr]
        raise Mixes
    if any(index in inputs for index in others):
        raise Mixes
    return rows[0]


@rule(*(f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod")), "SegmentSum", "SegmentMean", "SegmentMax")
def gather_segments(site: Site) -> Flow:
    """One entry for all that have the same number, by numbers of the leading axes."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only()
    if value.axis < site.rank(1) or not site.is_constant(*range(1, len(site.flows))):
        raise Mixes
    if not site.op.type.endswith(("Sum", "Mean")):
        plain(value)
    return replace(value, axis=value.axis - site.rank(1) + 1)


@rule("TensorScatterAdd", "TensorScatterUpdate", "TensorScatterSub")
def scatter_points(site: Site) -> Flow:
    """A tensor with other entries at points, whose coordinates are along the last axis of the second input."""
    value, _, update = site.flows
    if not site.apart:
        return site.only()
    depth, last = site.op.inputs[1].shape[-1], site.rank(1) - 1
    if not isinstance(value, Apart) or not site.is_constant(1) or depth is None or value.axis < depth:
        raise Mixes
    if update != replace(value, axis=last + value.axis - depth):
        raise Mixes
    return value
