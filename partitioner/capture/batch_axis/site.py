"""An op with what is known of its inputs, and the rules by op type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Origin, Total, Uniform
from partitioner.capture.batch_axis.sizes import UNKNOWN, Size

Rule = Callable[["Site"], "Flow | Sequence[Flow]"]
AnyRule = TypeVar("AnyRule", bound=Rule)
RULES: dict[str, Rule] = {}
"""By op type, what gives the flow of its outputs: one for all of them, or one for each. Raises Mixes."""


def rule(*types: str) -> Callable[[AnyRule], AnyRule]:
    """Register a rule for op types."""

    def register(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


@dataclass(frozen=True)
class Site:
    """An op with the flows of its inputs.

    Attributes:
        op: TensorFlow's operation, in a graph whose shapes are those of a batch of `rows` rows.
        flows: What is known of its inputs.
        rows: The number of rows for which the graph has its shapes.
        origin: The op as verdicts name it.
    """

    op: Any
    flows: tuple[Flow, ...]
    rows: int
    origin: Origin
    _shapes: dict[int, tuple[Size, ...]] = field(default_factory=dict)

    def attr(self, name: str) -> Any:
        """An attribute of the op."""
        return self.op.get_attr(name)

    @property
    def rest(self) -> tuple[Flow, ...]:
        """The flows of all inputs but the first."""
        return self.flows[1:]

    @cached_property
    def apart(self) -> list[Apart]:
        """The inputs that have rows."""
        return [flow for flow in self.flows if isinstance(flow, Apart)]

    def is_constant(self, *indices: int) -> bool:
        """Whether these inputs do not depend on the batch at all."""
        return all(isinstance(flow := self.flows[i], Uniform) and flow.power == 0 for i in indices)

    def rank(self, index: int) -> int:
        """Number of axes of an input."""
        rank = self.op.inputs[index].shape.rank
        if rank is None:
            raise Mixes
        return rank

    def shape(self, index: int) -> tuple[Size, ...]:
        """The sizes of an input: those at the rows of the graph are those for all, but along the axis of the rows."""
        if index not in self._shapes:
            self._shapes[index] = self._sizes(index)
        return self._shapes[index]

    def _sizes(self, index: int) -> tuple[Size, ...]:
        self.rank(index)
        flow = self.flows[index]
        settled = [UNKNOWN if size is None else Size(size) for size in self.op.inputs[index].shape.as_list()]
        if isinstance(flow, Apart):
            settled[flow.axis] = flow.rows
        elif isinstance(flow, Uniform) and flow.power != 0 and flow.numbers is None:
            settled = [UNKNOWN for _ in settled]
        elif not isinstance(flow, Uniform | Total):
            raise Mixes
        return tuple(settled)

    def numbers(self, index: int) -> np.ndarray:
        """The known numbers in an input."""
        flow = self.flows[index]
        if not isinstance(flow, Uniform) or flow.numbers is None:
            raise Mixes(flow.origin if isinstance(flow, Uniform) else None)
        return flow.numbers

    def constants(self, index: int) -> list[int]:
        """The known numbers in an input, flattened, none of which depends on the batch."""
        flat = list(self.numbers(index).flat)
        if not all(number.is_constant for number in flat):
            raise Mixes
        return [int(number.count) for number in flat]

    def axes(self, index: int, of: int = 0) -> list[int]:
        """The axes of the input `of` that another input names, none negative."""
        rank = self.rank(of)
        return [axis % rank if rank else 0 for axis in self.constants(index)]

    def only(self) -> Flow:
        """The flow of the only inputs that have rows, where all other inputs are constant."""
        free = [flow for flow in self.flows if not (isinstance(flow, Uniform) and flow.power == 0)]
        if len(free) > 1:
            raise Mixes
        return free[0] if free else Uniform()


def plain(flow: Flow) -> Flow:
    """A flow that an op may map by any function: raises Mixes where only linear functions keep what is known."""
    if isinstance(flow, Total) or (isinstance(flow, Apart) and flow.power != 0):
        raise Mixes(flow.origin)
    return flow


def unchanged(site: Site) -> Flow:
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
