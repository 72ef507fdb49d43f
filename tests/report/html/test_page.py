"""The page: its numbers against plan.json, what it leaves to nobody, and that names cannot break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import ClassVar

import pytest

from partitioner.errors import UsageError
from partitioner.ir.plan import PlanDocument
from partitioner.plan_view import Plan
from partitioner.report.html.page import to_html
from partitioner.report.images import draw_image


class Read(HTMLParser):
    """The elements of a page as (tag, attributes), and its text; checks that tags are closed in order."""

    _VOID: ClassVar = {"meta", "link", "br", "hr", "img", "input"}

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def having(self, attribute: str) -> Iterator[dict[str, str | None]]:
        return (attributes for _, attributes in self.elements if attribute in attributes)


def test_figures_are_those_of_the_plan(real_plan: Plan) -> None:
    page = Read(real_plan.to_html())
    figures = {str(one["data-figure"]): float(str(one["data-value"])) for one in page.having("data-figure")}
    assert real_plan.measured is not None
    assert figures == {
        "predicted step": real_plan.predicted.step_seconds,
        "lower bound": real_plan.solver.lower_bound,
        "largest peak": max(real_plan.predicted.peak_bytes.values()),
        "idle": real_plan.predicted.bubble_fraction,
        "measured step": real_plan.measured.step_seconds,
    }


def test_every_stage_baseline_and_bar_is_there(real_plan: Plan) -> None:
    page = Read(real_plan.to_html())
    stages = [(int(str(one["data-stage"])), one["data-device"]) for one in page.having("data-stage")]
    assert stages == [(stage.index, stage.device) for stage in real_plan.stages]
    assert [one["data-baseline"] for one in page.having("data-baseline")] == [b.name for b in real_plan.baselines]
    spans = {(float(str(one["data-start"])), float(str(one["data-end"]))) for one in page.having("data-start")}
    assert real_plan.measured is not None
    for bar in (*real_plan.timeline, *real_plan.transfers, *real_plan.measured.timeline):
        assert (bar.start_seconds, bar.end_seconds) in spans
    peaks = {str(one["data-device"]): int(str(one["data-bytes"])) for one in page.having("data-bytes")}
    assert peaks == {use.device: use.peak_bytes for use in real_plan.memory}


def test_nothing_is_loaded_and_nothing_runs(real_plan: Plan) -> None:
    text = real_plan.to_html()
    page = Read(text)
    assert len(text) < 3_000_000
    assert "script" not in {tag for tag, _ in page.elements}
    links = [one.get("href") or one.get("xlink:href") or "" for _, one in page.elements]
    assert all(link.startswith(("#", "data:,")) for link in links if link)
    assert "url(" not in text and "@import" not in text


def test_equal_plans_give_equal_pages(real_plan: Plan) -> None:
    assert Plan.from_json(real_plan.to_json()).to_html() == real_plan.to_html()


def test_charts_and_tables_have_names_for_those_who_do_not_see_them(real_plan: Plan) -> None:
    page = Read(real_plan.to_html())
    charts = [one for tag, one in page.elements if tag == "svg" and "chart" in str(one.get("class"))]
    assert len(charts) == 2 + len(real_plan.memory)
    assert all(one.get("role") == "img" and one.get("aria-label") for one in charts)
    regions = [one for _, one in page.elements if "scroll" in str(one.get("class"))]
    assert regions and all(one.get("tabindex") == "0" and one.get("aria-label") for one in regions)
    assert len([tag for tag, _ in page.elements if tag == "h1"]) == 1


def test_names_are_text_and_no_markup(split_plan: PlanDocument) -> None:
    evil = "<script>alert(1)</script>&amp;\"'"
    plan = replace(split_plan, model=replace(split_plan.model, name=evil, source=evil), notes=(evil,))
    page = Read(to_html(plan))
    assert "script" not in {tag for tag, _ in page.elements}
    assert "".join(page.text).count("alert(1)") >= 3


def test_without_graphviz_the_page_says_what_to_install(split_plan: PlanDocument) -> None:
    def draw(dot: str, kind: str) -> bytes:
        raise UsageError("no Graphviz")

    text = to_html(split_plan, draw=draw)
    assert "pip install pygraphviz" in text and "partition show plan.json --html report.html" in text
    assert "pip install pygraphviz" not in to_html(split_plan, draw=draw_image)


@pytest.mark.parametrize("fixture", ["split_plan", "single_plan", "pipeline_plan", "interleaved_plan"])
def test_pages_of_plans_of_all_shapes(fixture: str, request: pytest.FixtureRequest) -> None:
    plan: PlanDocument = request.getfixturevalue(fixture)
    page = Read(to_html(plan))
    has_chart = any(one.get("id") == "schedule" for _, one in page.elements)
    assert has_chart == bool(plan.timeline)
