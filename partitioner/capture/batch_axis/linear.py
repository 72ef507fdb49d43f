"""Powers and totals: what stays known of values that are added, multiplied or mapped.

A value of b rows may be b**p times something of each row, or of their sum. Which p, is what tells a mean from a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Origin, Total, Uniform


@dataclass(frozen=True, slots=True)
class Degree:
    """How a value depends on b, without where its rows are.

    Attributes:
        power: As in `Uniform`.
        origin: The op that made it depend on b.
        has_rows: Whether it has a value for each row.
        is_total: Whether it is a sum over rows.
    """

    power: int | None
    origin: Origin | None
    has_rows: bool = False
    is_total: bool = False

    def on(self, apart: Apart | None) -> Flow:
        """The flow with this degree and, if it has rows, the layout of `apart`."""
        if self.has_rows and apart is not None:
            return replace(apart, power=self.power, origin=self.origin)
        if self.is_total and self.power is not None and self.origin is not None:
            return Total(self.power, self.origin)
        return Uniform(self.power, None, self.origin)


def degree(flow: Flow) -> Degree:
    """The degree of a tensor; raises Mixes for what is no tensor of numbers."""
    match flow:
        case Uniform():
            return Degree(flow.power, flow.origin)
        case Apart():
            return Degree(flow.power, flow.origin, has_rows=True)
        case Total():
            return Degree(flow.power, flow.origin, is_total=True)
    raise Mixes


def added(flows: Sequence[Flow], here: Origin) -> Degree:
    """The degree of a sum, or of tensors put side by side. What is zero adds nothing."""
    degrees = [degree(flow) for flow in flows if not (isinstance(flow, Uniform) and flow.is_zero)] or [Degree(0, None)]
    totals = [one for one in degrees if one.is_total]
    rows = [one for one in degrees if one.has_rows]
    if totals:
        # A constant c is the b-th part of its sum over rows.
        wanted = {one.power if one.is_total else _less(one) for one in degrees}
        if rows or len(wanted) > 1 or None in wanted:
            raise Mixes(totals[0].origin)
        return totals[0]
    if len({one.power for one in degrees}) == 1 and degrees[0].power is not None:
        return replace(degrees[0], has_rows=bool(rows))
    origin = next((one.origin for one in degrees if one.origin), here)
    if rows:
        raise Mixes(origin)
    return Degree(None, origin)


def _less(one: Degree) -> int | None:
    return None if one.power is None else one.power - 1


def multiplied(flows: Sequence[Flow], here: Origin, *, inverse: Sequence[int] = ()) -> Degree:
    """The degree of a product, or of a quotient: of the flows at `inverse` the inverse is taken."""
    degrees = [degree(flow) for flow in flows]
    totals = [one for one in degrees if one.is_total]
    rows = [one for one in degrees if one.has_rows]
    for index in inverse:
        if degrees[index].is_total:
            raise Mixes(degrees[index].origin)
    if totals and (rows or len(totals) > 1):
        raise Mixes(totals[0].origin)
    origin = next((one.origin for one in [*totals, *degrees] if one.origin), None)
    if any(one.power is None for one in degrees):
        if rows or totals:
            raise Mixes(next(one.origin for one in degrees if one.power is None) or here)
        return Degree(None, origin or here)
    power = sum(-(one.power or 0) if index in inverse else one.power or 0 for index, one in enumerate(degrees))
    if power == 0 and not totals:
        origin = None
    return Degree(power, origin, has_rows=bool(rows), is_total=bool(totals))


def mapped(flows: Sequence[Flow], here: Origin) -> Degree:
    """The degree of any function of these values."""
    degrees = [degree(flow) for flow in flows]
    rows = [one for one in degrees if one.has_rows]
    bent = [one for one in degrees if one.is_total or one.power != 0]
    if bent and (rows or any(one.is_total for one in bent)):
        raise Mixes(next((one.origin for one in bent if one.is_total), bent[0].origin))
    if bent:
        return Degree(None, bent[0].origin or here)
    return Degree(0, None, has_rows=bool(rows))
