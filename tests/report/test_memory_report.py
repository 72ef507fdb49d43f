"""The memory section of the report: bytes by purpose, the largest tensors, what is left, the curve."""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.plan import PlanDocument
from partitioner.report.memory import curves, largest_lines
from partitioner.report.text import render
from tests.plan_memory import MIB, with_memory


def section(text: str) -> list[str]:
    """Lines of the memory section."""
    lines = text.splitlines()
    start = lines.index("memory at the peak (estimated)")
    return lines[start + 1 : lines.index("", start)]


def test_the_section_by_hand(split_plan: PlanDocument) -> None:
    lines = section(render(with_memory(split_plan), verbose=True))
    assert lines[0].split() == ["device", "peak", "parameters", "slots", "gradients", "activations", "left"]
    assert " ".join(lines[2].split()) == "GPU:0 100 MiB 2.0 MiB 4.0 MiB 2.0 MiB 92.0 MiB 7.9 GiB"
    assert " ".join(lines[3].split()) == "GPU:1 100 MiB 2.0 MiB 4.0 MiB 2.0 MiB 92.0 MiB 100 MiB too much"
    assert "\n".join(lines[4:]) == "\n".join((
        "  GPU:0 at 1.50 ms: conv2d/Relu 64.0 MiB in 4 microbatches, max_pooling2d/MaxPool 16.0 MiB",
        "  5.0 GiB of a GPU is not to be used: TensorFlow leaves it to the driver and to libraries",
        "  over the step; a full bar is the peak",
        "  GPU:0  ▁▂▄▅▇██▅",
    ))  # fmt: skip


def test_devices_that_hold_the_same_share_a_line(split_plan: PlanDocument) -> None:
    plan = with_memory(split_plan)
    peer = replace(plan.memory[0], device=plan.devices[1].name)
    tensors = "conv2d/Relu 64.0 MiB in 4 microbatches, max_pooling2d/MaxPool 16.0 MiB"
    assert list(largest_lines(replace(plan, memory=(plan.memory[0], peer)))) == [f"GPU:0-1 at 1.50 ms: {tensors}"]
    later = replace(peer, peak_seconds=2e-3)
    expected = [f"GPU:0 at 1.50 ms: {tensors}", f"GPU:1 at 2.00 ms: {tensors}"]
    assert list(largest_lines(replace(plan, memory=(plan.memory[0], later)))) == expected


def test_a_plan_without_memory_says_nothing_of_it(split_plan: PlanDocument) -> None:
    assert "memory at the peak" not in render(split_plan, verbose=True)


def test_few_columns_show_the_most_of_several_parts(split_plan: PlanDocument) -> None:
    assert curves(with_memory(split_plan), num_columns=4) == (("GPU:0", "▂▅██"),)
    assert curves(with_memory(split_plan), num_columns=80) == (("GPU:0", "▁▂▄▅▇██▅"),)


def test_memory_is_kept_in_plan_json(split_plan: PlanDocument) -> None:
    plan = with_memory(split_plan)
    assert PlanDocument.from_json(plan.to_json()).memory == plan.memory
    assert plan.memory[0].peak_bytes == 100 * MIB
