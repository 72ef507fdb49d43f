"""A benchmark as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.ir.devices import DeviceName, short_name, short_ranges
from partitioner.ir.units import format_bytes, format_ratio, format_seconds, plural
from partitioner.report.layout import Section, as_text, cut, drawn, lines, table

if TYPE_CHECKING:
    from partitioner.timing.result import Benchmark, Contender

_MAX_LINES = 4
"""Of a sentence below the tables."""
_SHORT_SECONDS = 0.02
"""Of a shorter step, what Keras adds, a millisecond or two, is a tenth or more."""


def render_benchmark(benchmark: Benchmark, *, width: int, color: bool) -> str:
    """The contenders, the memory of devices, and what to make of the times."""
    return as_text(_parts(benchmark, width), width=width, color=color)


def _parts(benchmark: Benchmark, width: int) -> Iterator[RenderableType]:
    kind = "training" if benchmark.training else "inference"
    yield Text(f"{benchmark.model}, batch size {benchmark.batch_size:,}, {kind}", style="bold")
    if benchmark.has_stand_ins:
        stand_ins = [
            f"{short_name(ran)} for {short_name(name)}" for name, ran in benchmark.devices.items() if ran != name
        ]
        sentence = f"standing in: {', '.join(stand_ins)}; the times are theirs, and say nothing about GPUs"
        yield lines(cut(sentence, width=width, max_lines=2), style="yellow")
    yield drawn(Section(title=f"step time (median of {_rounds(benchmark)})", body=_times(benchmark)))
    for contender in benchmark.contenders:
        if contender.reason:
            yield lines(cut(f"  {contender.name}: {contender.reason}", width=width, max_lines=_MAX_LINES))
    yield drawn(Section(title="peak memory", body=_memory(benchmark)))
    yield Text()
    for sentence, style in _remarks(benchmark):
        yield lines(cut(sentence, width=width, max_lines=_MAX_LINES), style=style)


def _rounds(benchmark: Benchmark) -> str:
    return f"{plural(len(benchmark.counted_rounds), 'round')} of {plural(benchmark.num_steps, 'step')}"


def _times(benchmark: Benchmark) -> Table:
    body = table("", "on", ">predicted", ">measured", ">fastest", ">slowest", "against the plan")
    first = benchmark.contenders[0].median_seconds
    for contender in benchmark.contenders:
        if contender.median_seconds is None:
            continue
        rounds = contender.round_seconds  # fewer than there were, if it failed in one
        counted = [rounds[number] for number in benchmark.counted_rounds if number < len(rounds)] or rounds
        against = "" if first is None or contender is benchmark.contenders[0] else _ratio(contender, first)
        body.add_row(
            Text(contender.name),
            Text(", ".join(short_ranges(contender.devices))),
            "-" if contender.predicted_seconds is None else format_seconds(contender.predicted_seconds),
            format_seconds(contender.median_seconds),
            format_seconds(min(counted)),
            format_seconds(max(counted)),
            against,
        )
    return body


def _ratio(contender: Contender, first: float) -> str:
    assert contender.median_seconds is not None
    return format_ratio(contender.median_seconds, first)


def _memory(benchmark: Benchmark) -> Table:
    body = table("device", ">predicted", ">measured")
    for peak in benchmark.memory:
        measured = "not known" if peak.measured_bytes is None else format_bytes(peak.measured_bytes)
        body.add_row(short_name(peak.device), format_bytes(peak.predicted_bytes), measured)
    return body


def _remarks(benchmark: Benchmark) -> Iterator[tuple[str, str]]:
    """Sentences on how far the figures can be believed, and their style."""
    got, wanted = benchmark.cores, benchmark.num_loops
    busy = f"{plural(wanted, 'busy loop')} got {statistics.median(got):.2f} of {plural(wanted, 'core')}"
    yield f"{busy} (median of rounds; {min(got):.2f} to {max(got):.2f})", ""
    if len(benchmark.disturbed_rounds) == benchmark.num_rounds:
        yield "ALL rounds were disturbed by other work of this machine: the times mean little", "red"
    elif benchmark.disturbed_rounds:
        numbers = ", ".join(str(number + 1) for number in benchmark.disturbed_rounds)
        yield f"disturbed by other work of this machine, and left out of the medians: round {numbers}", "yellow"
    ran = [DeviceName.parse(name) for name in dict.fromkeys(benchmark.devices.values())]
    if any(peak.measured_bytes is None for peak in benchmark.memory):
        yield "memory is known of GPUs in this process only: TensorFlow does not count that of CPUs", ""
    if sum(device.type == "CPU" and device.is_local for device in ran) > 1:
        yield "CPU devices share the cores of this machine, and one that is alone may use all of them", ""
    predicted = [one.predicted_seconds for one in benchmark.contenders if one.predicted_seconds is not None]
    if min(predicted, default=_SHORT_SECONDS) < _SHORT_SECONDS:
        yield "steps are short: what Keras adds to each (data, metrics) is measured, and not in the plan", ""
