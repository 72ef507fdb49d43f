"""The picture drawn: real Graphviz, the program as second choice, the hint when there is neither."""

from __future__ import annotations

import html
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from partitioner.errors import UsageError
from partitioner.ir.plan import PlanDocument
from partitioner.report.images import write_image
from partitioner.report.placement import to_dot


def test_an_svg_shows_every_layer(split_plan: PlanDocument, tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    write_image(to_dot(split_plan), tmp_path / "placement.svg", "svg")
    shown = _texts(tmp_path / "placement.svg")
    for layer in split_plan.layers:
        assert layer.name in shown


def test_an_svg_of_microbatches_shows_their_stages(interleaved_plan: PlanDocument, tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    write_image(to_dot(interleaved_plan), tmp_path / "placement.svg", "svg")
    shown = _texts(tmp_path / "placement.svg")
    for text in ("4 microbatches, schedule interleaved", ", stages 0 (recompute) and 2", ", stages 1 and 3"):
        assert text in shown


def test_graphviz_shows_nasty_names_as_they_are(split_plan: PlanDocument, tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    names = (r"a\N", 'q"q', "x:0", "{r|s}", "<i>&", "層")
    layers = tuple(replace(layer, name=name) for layer, name in zip(split_plan.layers, names, strict=False))
    write_image(to_dot(replace(split_plan, layers=layers, edges=())), tmp_path / "placement.svg", "svg")
    shown = _texts(tmp_path / "placement.svg")
    for name in names:
        assert name in shown


def test_the_dot_program_is_the_second_choice(
    split_plan: PlanDocument, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\n[ "$1" = -Tsvg ] && read -r first && echo "<svg>$first</svg>"\n')
    program.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write_image(to_dot(split_plan), tmp_path / "placement.svg", "svg")
    assert (tmp_path / "placement.svg").read_text() == "<svg>digraph placement {</svg>\n"


def test_without_graphviz_the_hint_is_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs Graphviz") as caught:
        write_image("digraph {}", tmp_path / "placement.svg", "svg")
    assert caught.value.help == "pip install pygraphviz"
    assert not (tmp_path / "placement.svg").exists()


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_both_kinds_are_what_they_are_called(split_plan: PlanDocument, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pygraphviz")
    write_image(to_dot(split_plan, level="stage"), tmp_path / "placement", kind)
    assert (tmp_path / "placement").read_bytes().startswith({"svg": b"<?xml", "png": b"\x89PNG\r\n"}[kind])


@pytest.mark.skipif(sys.platform == "win32", reason="the fake program is a shell script")
def test_a_refusal_of_the_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho 'syntax error in line 1' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UsageError, match="syntax error in line 1"):
        write_image("digraph {", tmp_path / "placement.svg", "svg")


def test_a_text_that_is_no_dot_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    with pytest.raises(UsageError, match="cannot draw"):
        write_image("digraph { a -> ", tmp_path / "placement.svg", "svg")


def _texts(path: Path) -> str:
    """All text Graphviz drew, joined as one line per `<text>`, spaces as typed."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
    return "\n".join(html.unescape(text).replace("\xa0", " ") for text in texts)
