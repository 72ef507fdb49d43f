"""TensorFlow's lists of tensors, in which loops keep what each trip makes."""

from __future__ import annotations

from dataclasses import replace

from partitioner.capture.batch_axis.flow import Apart, Flow, Items, Mixed, Mixes, Row, Total, Uniform, joined
from partitioner.capture.batch_axis.site import Site, plain, rule
from partitioner.capture.batch_axis.sizes import Size, numbers


@rule("EmptyTensorList", "TensorListReserve")
def empty(site: Site) -> Flow:
    """A list with nothing in it."""
    return Items()


@rule("TensorListFromTensor")
def from_tensor(site: Site) -> Flow:
    """What lies along the first axis."""
    value = site.flows[0]
    if not isinstance(value, Apart):
        return Items(replace(value, numbers=None) if isinstance(value, Uniform) else value)
    if value.axis:
        return Items(replace(value, axis=value.axis - 1))
    if plain(value) != Apart(0):
        raise Mixes
    return Items(Row())


@rule("TensorListStack")
def stack(site: Site) -> Flow:
    """Its tensors along a new first axis."""
    return _stacked(_item(site))


@rule("TensorListGather")
def stack_some(site: Site) -> Flow:
    """Some of its tensors along a new first axis."""
    if isinstance(_item(site), Row) or not site.is_constant(1):
        raise Mixes
    return _stacked(_item(site))


@rule("TensorListScatterV2", "TensorListScatter")
def scatter(site: Site) -> Flow:
    """What lies along the first axis, at given places."""
    value = from_tensor(site)
    if not site.is_constant(1) or (isinstance(value, Items) and isinstance(value.item, Row)):
        raise Mixes
    return value


@rule("TensorListGetItem")
def get(site: Site) -> Flow:
    """One of its tensors: of those of rows, that of the current trip."""
    item, place = _item(site), site.flows[1]
    is_own = isinstance(place, Uniform) and (place.is_row_number if isinstance(item, Row) else place.power == 0)
    if not is_own:
        raise Mixes
    return item


@rule("TensorListSetItem")
def put(site: Site) -> Flow:
    """The list with a tensor at a place: what a row gives, at the place of the row."""
    held, place, value = site.flows[:3]
    if not isinstance(place, Uniform) or not isinstance(held, Items):
        raise Mixes
    if place.is_row_number:
        if held.item not in (None, Row()) or value not in (Row(), Uniform()):
            raise Mixes
        return Items(Row())
    if isinstance(held.item, Row) or place.power != 0:
        raise Mixes
    return value if isinstance(value, Row) else _with(site, value)


@rule("TensorListPushBack")
def push(site: Site) -> Flow:
    """The list with one more tensor."""
    value = site.flows[1]
    return _with(site, Mixed(site.origin) if isinstance(value, Row) else value)


@rule("TensorListPopBack")
def pop(site: Site) -> list[Flow]:
    """The list without its last tensor, and this tensor."""
    item = _item(site)
    if isinstance(item, Row):
        raise Mixes
    return [site.flows[0], item]


@rule("TensorListLength")
def length(site: Site) -> Flow:
    """How many there are: as many as rows, where it has one for each."""
    held = site.flows[0]
    if isinstance(held, Items) and isinstance(held.item, Row):
        return Uniform(1, numbers(Size(1, 1)), site.origin)
    return Uniform(0) if isinstance(held, Items) and held.item is not None else Uniform(None, None, site.origin)


@rule("TensorListElementShape")
def element_shape(site: Site) -> Flow:
    """The sizes of its tensors."""
    return Uniform(None, None, site.origin)


def _item(site: Site) -> Flow:
    held = site.flows[0]
    if not isinstance(held, Items):
        raise Mixes
    return Uniform() if held.item is None else held.item


def _with(site: Site, value: Flow) -> Items:
    held = site.flows[0]
    if not isinstance(held, Items):
        raise Mixes
    value = replace(value, numbers=None) if isinstance(value, Uniform) else value
    return Items(value if held.item is None else joined(held.item, value, site.origin))


def _stacked(item: Flow) -> Flow:
    if isinstance(item, Row):
        return Apart(0)
    return replace(item, axis=item.axis + 1) if isinstance(item, Apart) else _checked(item)


def _checked(item: Flow) -> Flow:
    if isinstance(item, Mixed):
        raise Mixes(item.origin)
    return item if isinstance(item, Uniform | Total) else Uniform()
