"""Numbers in small tensors: constants, sizes of the batch, and what is computed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# The public API cannot read the value of a Const.
from tensorflow.python.framework.tensor_util import MakeNdarray

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total, Uniform, uniform
from partitioner.capture.batch_axis.reshapes import filled
from partitioner.capture.batch_axis.site import Site
from partitioner.capture.batch_axis.sizes import UNKNOWN, Size, numbers, product
from partitioner.capture.batch_axis.slices import index_of
from partitioner.capture.functions.alike import MOST_NUMBERS


def known_numbers(site: Site) -> list[Flow] | None:
    """The outputs of an op whose inputs are the same for all rows, where numbers in them are known; else None.

    Sizes of tensors with rows are known too.
    """
    kind = site.op.type
    if kind in _SHAPES:
        return _SHAPES[kind](site)
    if kind not in _COMPUTE or not all(isinstance(flow, Uniform) for flow in site.flows):
        return None
    shapes = [tensor.shape for tensor in site.op.inputs or site.op.outputs]
    if any(shape.num_elements() is None or shape.num_elements() > MOST_NUMBERS for shape in shapes):
        return None
    if site.flows and not any(flow.numbers is not None for flow in site.flows):  # type: ignore[union-attr]
        return None
    try:
        made = _COMPUTE[kind](site, *map(_array, site.op.inputs, site.flows))
    except (Mixes, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        return None
    made = made if isinstance(made, list) else [made]
    depends = any(isinstance(flow, Uniform) and flow.power != 0 for flow in site.flows)
    origin = next((flow.origin for flow in site.flows if isinstance(flow, Uniform) and flow.origin), site.origin)
    return [uniform(numbers(one), depends_on_rows=depends, origin=origin) for one in made]


def _array(tensor: Any, flow: Flow) -> np.ndarray:
    if isinstance(flow, Uniform) and flow.numbers is not None:
        return flow.numbers
    return np.full(tensor.shape.as_list(), UNKNOWN, dtype=object)


def _sizes(site: Site) -> list[Flow] | None:
    """The sizes of each input."""
    if not all(isinstance(flow, Uniform | Apart | Total) for flow in site.flows):
        return None
    if any(tensor.shape.rank is None for tensor in site.op.inputs):
        return None
    shapes = [numbers(list(site.shape(index))) if site.rank(index) else _empty() for index in range(len(site.flows))]
    if site.op.type == "Size":
        shapes = [numbers(product(shape.flat)) for shape in shapes]
    depends = [isinstance(flow, Apart) or (isinstance(flow, Uniform) and flow.power != 0) for flow in site.flows]
    return [
        uniform(shape, depends_on_rows=by_row, origin=site.origin)
        for shape, by_row in zip(shapes, depends, strict=True)
    ]


def _rank(site: Site) -> list[Flow] | None:
    rank = site.op.inputs[0].shape.rank
    return None if rank is None else [Uniform(0, numbers(rank))]


def _empty() -> np.ndarray:
    return np.empty((0,), dtype=object)


def _constant(site: Site) -> np.ndarray:
    value = np.asarray(MakeNdarray(site.attr("value")))
    if value.dtype.kind not in "iufb":
        raise ValueError
    return value


def _cast(site: Site, value: np.ndarray) -> Any:
    target = site.op.outputs[0].dtype
    if target.is_bool:
        return _each(lambda one: Size(int(one.count != 0)) if one.is_known else UNKNOWN)(value)
    if target.is_integer:
        return _each(
            lambda one: Size(int(one.count), one.power) if one.is_known and one.count == int(one.count) else UNKNOWN
        )(value)
    return value


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    return np.frompyfunc(function, function.__code__.co_argcount, 1)


def _compare(function: Callable[[int], bool]) -> Callable[..., Any]:
    """Of two numbers, by the sign of their difference, if it is the same for all numbers of rows."""

    def compare(a: Size, b: Size) -> Size:
        sign = a.compared(b)
        return UNKNOWN if sign is None else Size(int(function(sign)))

    return lambda _, a, b: _each(compare)(a, b)


def _both(a: Size, b: Size) -> Size:
    if Size(0) in (a, b):
        return Size(0)
    return Size(1) if a.is_known and b.is_known else UNKNOWN


def _along(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(site: Site, value: np.ndarray, axes: np.ndarray) -> Any:
        where = tuple(int(axis.count) for axis in axes.flat)
        moved = np.moveaxis(value, where, range(len(where))) if where else value
        flat = moved.reshape((-1, *moved.shape[len(where) :])) if where else value[None]
        result = flat[0] if len(flat) else numbers(np.zeros(moved.shape[len(where) :]) + (function is _TIMES))
        for one in flat[1:]:
            result = function(result, one)
        return np.asarray(result, dtype=object).reshape(site.op.outputs[0].shape.as_list())

    return reduce


_TIMES = _each(lambda a, b: a * b)
_PLUS = _each(lambda a, b: a + b)
_LARGEST = _each(lambda a, b: a.largest(b))
_SMALLEST = _each(lambda a, b: a.smallest(b))


def _two(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, a, b: function(a, b)


def _range(_: Site, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> Any:
    ends = [start.item(), limit.item(), delta.item()]
    if not all(end.is_constant for end in ends):
        raise ValueError
    return np.arange(*(end.count for end in ends))


def _take(site: Site, params: np.ndarray, indices: np.ndarray, axis: np.ndarray) -> Any:
    if site.attr("batch_dims"):
        raise ValueError
    return np.take(params, np.asarray(_ints(indices)).reshape(indices.shape).astype(int), axis=_ints(axis)[0])


def _ints(value: np.ndarray) -> list[int]:
    if not all(one.is_constant for one in value.flat):
        raise ValueError
    return [int(one.count) for one in value.flat]


def _cut_steps(site: Site, value: np.ndarray, *_: np.ndarray) -> Any:
    index = tuple(_python(one) for one in index_of(site))
    return value[index]


def _python(index: Any) -> Any:
    if isinstance(index, slice):
        return slice(
            *(None if end is None else _ints(numbers(end))[0] for end in (index.start, index.stop, index.step))
        )
    return _ints(numbers(index))[0] if isinstance(index, Size) else index


def _cut_out(_: Site, value: np.ndarray, begin: np.ndarray, size: np.ndarray) -> Any:
    pairs = zip(_ints(begin), _ints(size), strict=True)
    return value[tuple(slice(first, None if num == -1 else first + num) for first, num in pairs)]


def _reshape(_: Site, value: np.ndarray, shape: np.ndarray) -> Any:
    before = [Size(size) for size in value.shape]
    return value.reshape([int(size.count) for size in filled(before, list(shape.flat))])


def _unpack(site: Site, value: np.ndarray) -> list[np.ndarray]:
    return [numbers(one) for one in np.moveaxis(value, site.attr("axis"), 0)]


def _split(site: Site, axis: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
    return np.split(value, len(site.op.outputs), axis=_ints(axis)[0])


def _broadcast_axes(_: Site, first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    """The axes along which one of two shapes is broadcast to the other."""
    rank = max(first.size, second.size)
    shapes = [[Size(1)] * (rank - shape.size) + list(shape) for shape in (first, second)]
    if not all(size.is_known for shape in shapes for size in shape):
        raise ValueError
    return [np.array([axis for axis, size in enumerate(shape) if size == Size(1)], dtype=object) for shape in shapes]


_SHAPES: dict[str, Callable[[Site], list[Flow] | None]] = {
    "Shape": _sizes,
    "ShapeN": _sizes,
    "Size": _sizes,
    "Rank": _rank,
}
_COMPUTE: dict[str, Callable[..., Any]] = {
    "Const": _constant,
    "BroadcastGradientArgs": _broadcast_axes,
    **dict.fromkeys(("Identity", "StopGradient", "Snapshot"), lambda _, value: value),
    "Cast": _cast,
    **dict.fromkeys(("Add", "AddV2"), _two(_PLUS)),
    "Sub": _two(_each(lambda a, b: a - b)),
    "Mul": _two(_TIMES),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), _two(_each(lambda a, b: a / b))),
    "FloorDiv": _two(_each(lambda a, b: a // b)),
    "FloorMod": _two(_each(lambda a, b: a % b)),
    "Maximum": _two(_LARGEST),
    "Minimum": _two(_SMALLEST),
    "Neg": lambda _, value: _each(lambda one: -one)(value),
    "Less": _compare(lambda sign: sign < 0),
    "LessEqual": _compare(lambda sign: sign <= 0),
    "Greater": _compare(lambda sign: sign > 0),
    "GreaterEqual": _compare(lambda sign: sign >= 0),
    "Equal": _compare(lambda sign: sign == 0),
    "NotEqual": _compare(lambda sign: sign != 0),
    "LogicalAnd": _two(_each(_both)),
    "LogicalNot": lambda _, value: _each(lambda one: Size(1 - one.count) if one.is_known else UNKNOWN)(value),
    **dict.fromkeys(
        ("Select", "SelectV2"),
        lambda _, condition, a, b: _each(lambda c, x, y: (x if c.count else y) if c.is_known else UNKNOWN)(
            condition, a, b
        ),
    ),
    "Pack": lambda site, *values: np.stack(values, axis=site.attr("axis")),
    "ConcatV2": lambda _, *values: np.concatenate(values[:-1], axis=_ints(values[-1])[0]),
    "StridedSlice": _cut_steps,
    "Slice": _cut_out,
    "GatherV2": _take,
    "Reshape": _reshape,
    "ExpandDims": lambda _, value, axis: np.expand_dims(value, _ints(axis)[0]),
    "Squeeze": lambda site, value: value.reshape(site.op.outputs[0].shape.as_list()),
    "Transpose": lambda _, value, axes: np.transpose(value, _ints(axes)),
    "Unpack": _unpack,
    "Split": _split,
    "Range": _range,
    "Fill": lambda _, shape, value: np.full(_ints(shape), value.item(), dtype=object),
    "ZerosLike": lambda _, value: np.zeros(value.shape, dtype=int),
    "OnesLike": lambda _, value: np.ones(value.shape, dtype=int),
    "Tile": lambda _, value, times: np.tile(value, _ints(times)),
    "ReverseV2": lambda _, value, axes: np.flip(value, tuple(_ints(axes))),
    "Prod": _along(_TIMES),
    "Sum": _along(_PLUS),
    "Max": _along(_LARGEST),
    "Min": _along(_SMALLEST),
}
