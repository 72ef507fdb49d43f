"""A plan in a notebook: the table by hand, the picture where Graphviz is there, names that HTML would mangle."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from partitioner.ir.plan import PlanDocument
from partitioner.plan_view import Plan
from partitioner.report.notebook import as_html


def _cells(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text.split("</table>")[0])
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]


def test_a_row_for_each_stage(split_plan: PlanDocument) -> None:
    assert _cells(as_html(split_plan)) == [
        ["stage", "device", "layers", "ops", "parameters", "peak memory", "compute", "sends"],
        ["0", "GPU:0", "conv2d .. flatten (5 layers)", "150", "73.5 KiB", "1.2 GiB", "1.25 ms", "784 KiB"],
        ["1", "GPU:1", "dense .. logits (2 layers)", "64", "24.6 MiB", "120 MiB", "480 us", "784 KiB"],
    ]


def test_the_picture_is_inline_and_alone(split_plan: PlanDocument) -> None:
    pytest.importorskip("pygraphviz")
    text = as_html(split_plan)
    assert text.count("<svg") == 1 and text.endswith("</svg>\n")
    assert "<?xml" not in text and "<!DOCTYPE" not in text and "<!--" not in text
    assert ">conv2d_1</text>" in text


def test_without_graphviz_there_is_the_table(split_plan: PlanDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    text = as_html(split_plan)
    assert len(_cells(text)) == 3
    assert "<svg" not in text
    assert "neither pygraphviz nor a `dot` program is installed; pip install pygraphviz" in text


def test_names_are_escaped(split_plan: PlanDocument) -> None:
    model = replace(split_plan.model, name="<b>&")
    stages = (replace(split_plan.stages[0], layers=("<i>",)), split_plan.stages[1])
    text = as_html(replace(split_plan, model=model, stages=stages))
    assert "<b>&lt;b&gt;&amp;</b>" in text
    assert _cells(text)[1][2] == "&lt;i&gt;"


def test_notebooks_choose_between_table_and_text(split_plan: PlanDocument) -> None:
    plan = Plan.of(split_plan)
    shown = plan._repr_mimebundle_()
    assert shown == {"text/plain": plan.to_text(), "text/html": plan._repr_html_()}
