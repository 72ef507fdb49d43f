"""Keras' summary of a model with a column for devices. Keras' own has fixed columns, so its table is made anew."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from rich.console import Console
from rich.table import Table
from rich.text import Text

from partitioner.errors import UsageError
from partitioner.ir.devices import short_ranges
from partitioner.ir.plan import PlanDocument

_LINE_LENGTH = 100
_NARROWEST = 40
_POSITIONS = (0.42, 0.67, 0.8, 1.0)


def summary(
    model: keras.Model,
    plan: PlanDocument,
    *,
    line_length: int | None = None,
    positions: Sequence[float] | None = None,
    print_fn: Callable[[str], Any] | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
) -> None:
    """Print the layers of a model with their output shapes, numbers of parameters and devices.

    Arguments are those of `keras.Model.summary`; `positions` are where columns end, as shares of a line.

    Raises:
        UsageError: `layer_range` is no pair of names, or no layer matches one of them; or the line is too narrow.
    """
    width = line_length or min(_LINE_LENGTH, shutil.get_terminal_size().columns)
    header = ["Layer (type)", "Output Shape", "Param #", "Device", *(["Trainable"] if show_trainable else [])]
    inner = width - 3 * len(header) - 1  # without lines and padding
    ends = list(positions or _POSITIONS)
    if show_trainable and len(ends) == len(_POSITIONS):
        ends = [*(end * (1 - len(header[-1]) / inner) for end in ends), 1.0]
    if width < _NARROWEST or len(ends) != len(header):
        raise UsageError(
            f"a summary with {len(header)} columns needs a line of at least {_NARROWEST} characters and a position for "
            f"each column; this has {width} and {len(ends)}"
        )
    table = Table(width=width, show_lines=True)
    stops = [round(end * inner) for end in ends]
    for name, begin, stop in zip(header, [0, *stops], stops, strict=False):
        justify = "right" if name == "Param #" else "left"
        table.add_column(name, width=stop - begin, justify=justify, overflow="fold")
    devices = {layer.name: layer.device for layer in plan.layers}
    for layer, path, depth in _listed(_in_range(model.layers, layer_range), "", 0, expand_nested):
        row = _row(layer, path, depth, devices)
        table.add_row(*map(Text, [*row, _trainable(layer)] if show_trainable else row))
    lines = Console(width=width, force_terminal=False, force_jupyter=False, color_system=None, highlight=False)
    with lines.capture() as captured:
        lines.print(Text(f'Model: "{model.name}", placed'))
        lines.print(table)
        lines.print(Text("\n".join(_counts(model))))
    (print_fn or print)(captured.get().rstrip("\n"))


def _listed(layers: Sequence[Any], prefix: str, depth: int, expands: bool) -> Iterator[tuple[Any, str, int]]:
    for layer in layers:
        path = f"{prefix}{layer.name}"
        yield layer, path, depth
        if expands:
            yield from _listed(getattr(layer, "layers", None) or (), f"{path}/", depth + 1, expands)


def _row(layer: Any, path: str, depth: int, devices: Mapping[str, str]) -> list[str]:
    prefix = f"{'   ' * depth}└ " if depth else ""
    count = f"{layer.count_params():,}" if layer.built else "0 (unbuilt)"
    return [f"{prefix}{layer.name} ({type(layer).__name__})", _shape(layer), count, _devices(layer, path, devices)]


def _devices(layer: Any, path: str, devices: Mapping[str, str]) -> str:
    """The device of a layer, or those of the layers within; those of its variables where the plan has other names."""
    inside = [device for name, device in devices.items() if name == path or name.startswith(f"{path}/")]
    held = inside or [variable.value.device for variable in layer.weights]
    return ", ".join(short_ranges(dict.fromkeys(held))) or "-"


def _shape(layer: Any) -> str:
    try:
        outputs = keras.tree.flatten(layer.output)
    except (AttributeError, ValueError):  # it was called in no functional model, or several times
        return "?"
    return ", ".join(f"{tuple(output.shape)}" for output in outputs)


def _trainable(layer: Any) -> str:
    return "-" if not layer.weights else "Y" if layer.trainable else "N"


def _in_range(layers: Sequence[Any], bounds: Sequence[str] | None) -> Sequence[Any]:
    """The layers from the first that matches the first bound to the last that matches the second."""
    if bounds is None:
        return layers
    names = [layer.name for layer in layers]
    first, last = bounds if len(bounds) == 2 else ("", "")
    begins = [index for index, name in enumerate(names) if first and re.match(first, name)]
    ends = [index for index, name in enumerate(names) if last and re.match(last, name)]
    if not begins or not ends:
        raise UsageError(
            f"layer_range is {bounds!r}, expected the names of two layers, or patterns of them",
            notes=[f"layers: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"],
        )
    return layers[min(begins[0], ends[-1]) : max(begins[0], ends[-1]) + 1]


def _counts(model: keras.Model) -> Iterator[str]:
    trainable, others = (
        sum(math.prod(variable.shape) for variable in group)
        for group in (model.trainable_variables, model.non_trainable_variables)
    )
    yield f" Total params: {trainable + others:,}"
    yield f" Trainable params: {trainable:,}"
    yield f" Non-trainable params: {others:,}"
