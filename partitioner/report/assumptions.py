"""Assumptions of a plan: hardware, links, costs, loss and optimizer, and ops without a cost formula."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.ir.devices import short_ranges
from partitioner.ir.plan import Origin, PlanDocument
from partitioner.report.basis import basis, device_rows, link_rows
from partitioner.report.layout import Section, Spell, lines, table
from partitioner.spelling import argument

_MAX_OPS = 12
_MAX_ASSUMED = 3
_FACT_ORIGINS = {"compiled": "as compiled", "option": "from {name}", "assumed": "assumed; {name} sets it"}


def assumptions(plan: PlanDocument, spell: Spell) -> tuple[str, ...]:
    """The basis of the estimates, assumed facts, and ops that the estimates leave out."""
    assumed = "; ".join(_assumed(plan, spell))
    return tuple(filter(None, (basis(plan), f"assumed: {assumed}" if assumed else "", _uncosted(plan, 3))))


def _assumed(plan: PlanDocument, spell: Spell) -> Iterable[str]:
    hardware: dict[str, list[str]] = {}
    for info in plan.devices:
        if info.origin is Origin.ASSUMED:
            hardware.setdefault(info.hardware, []).append(info.name)
    named = [f"{', '.join(short_ranges(names))} as {kind}" for kind, names in hardware.items()]
    if named:
        yield _first(named, _MAX_ASSUMED)
    links = [link.name for link in plan.links if link.origin is Origin.ASSUMED]
    if links:
        yield f"link{'' if len(links) == 1 else 's'} {_first(links, _MAX_ASSUMED)}"
    for name, value, origin in _trained(plan):
        if origin == "assumed":
            yield f"{name} {value} ({spell(argument(name))} sets it)"


def _trained(plan: PlanDocument) -> list[tuple[str, str, str]]:
    model = plan.model
    if not model.training:
        return []
    facts = [("loss", model.loss, model.loss_origin), ("optimizer", model.optimizer, model.optimizer_origin)]
    return [fact for fact in facts if fact[1]]


def _uncosted(plan: PlanDocument, count: int) -> str:
    if not plan.uncosted_ops:
        return ""
    return f"no cost formula for {_first(plan.uncosted_ops, count)}: their arithmetic is not in the estimates"


def _first(names: Sequence[str], count: int) -> str:
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more:,} more" if more > 0 else "")


def assumption_sections(plan: PlanDocument, spell: Spell) -> Iterable[Section]:
    """All assumptions: tables of devices and links, loss and optimizer, ops without a cost formula."""
    yield Section(title="hardware", body=_hardware(plan))
    trained = _trained(plan)
    if trained:
        sentences = []
        for name, value, origin in trained:
            where = _FACT_ORIGINS.get(origin, origin).format(name=spell(argument(name)))
            sentences.append(f"{name} {value}" + (f" ({where})" if where else ""))
        yield Section(title="training", body=lines(sentences))
    if plan.uncosted_ops:
        sentence = f"{_first(plan.uncosted_ops, _MAX_OPS)}: their arithmetic is not in the estimates"
        yield Section(title="ops without a cost formula", body=lines([sentence], "yellow"))


def _hardware(plan: PlanDocument) -> RenderableType:
    devices = table("device", "hardware", "origin", ">memory to use", ">peak")
    for name, hardware, origin, memory, peak in device_rows(plan):
        devices.add_row(Text(name), Text(hardware), _origin(origin), memory, peak)
    if not plan.links:
        return Group(devices, Text(basis(plan)))
    links = table("link", "origin", ">latency", ">bandwidth", "joins", ">sent in a step")
    for name, origin, *figures in link_rows(plan):
        links.add_row(Text(name), _origin(origin), *figures)
    return Group(devices, Text(), links, Text(basis(plan)))


def _origin(origin: str) -> Text:
    return Text(origin, style="yellow" if origin == "assumed" else "")
