"""The report and the picture of a cost graph's plan: loads in the file's unit, from a plan.json alone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from partitioner.cost_graphs.document import CostGraphPlan, Piece
from partitioner.errors import UsageError
from partitioner.ir.plan import WhatIf

OLD = Path(__file__).parent / "plan_of_0_1_0.json"
"""Of a chain of four nodes, 3 ms each, 1 ms to move a value, on two accelerators and a CPU ten times slower."""


@pytest.fixture
def plan() -> CostGraphPlan:
    return CostGraphPlan.load(OLD)


def section(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    begin = lines.index(title) + 1
    end = next((index for index in range(begin, len(lines)) if not lines[index]), len(lines))
    return [line.strip() for line in lines[begin:end]]


def test_loads_bound_and_baselines_are_in_the_unit_of_the_file(plan: CostGraphPlan) -> None:
    text = plan.to_text()
    assert text.splitlines()[1] == "  cost graph, 4 nodes, 3 values, devices GPU:0, GPU:1 and CPU:0"
    assert section(text, "placement") == ["contiguous pieces on GPU:1 and GPU:0: largest load 7 ms"]
    rows = [line.split("  ") for line in section(text, "loads")[2:]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [[name, "2", "6 ms", "1 ms", "7 ms", "100 %", "20 B of 30 B"] for name in ("GPU:1", "GPU:0")]
    solver = section(text, "solver")
    assert solver[0].startswith("optimal in ")
    assert solver[1].startswith("lower bound 7 ms: no allowed placement has a smaller largest load; gap 0 %")
    assert solver[-1] == "single-device CPU:0: 120 ms, which is not allowed"  # a node is pinned


def test_nodes_are_listed_if_all_is_to_be_shown(plan: CostGraphPlan) -> None:
    assert section(plan.to_text(verbose=True), "nodes") == ["GPU:1: 1, 2", "GPU:0: 3, 4"]
    assert "nodes\n" not in plan.to_text()


def test_files_notes_and_gains_have_sections(plan: CostGraphPlan) -> None:
    gain = WhatIf(change="one more device like GPU:1", before=7.0, after=3.5, unit="ms")
    text = replace(plan, notes=("interrupted",), what_if=(gain,)).to_text(files=["plan.json"])
    assert section(text, "notes") == ["- interrupted"]
    assert section(text, "files") == ["plan.json"]
    assert "one more device like GPU:1        3.5 ms  50 % less" in section(text, "what if (estimated)")


def test_a_piece_without_load_is_reported(plan: CostGraphPlan) -> None:
    idle = tuple(replace(piece, compute=0.0, transfer=0.0) for piece in plan.pieces)
    nothing = replace(plan, pieces=idle, solver=replace(plan.solver, objective=0.0, lower_bound=0.0))
    assert "largest load 0 ms" in nothing.to_text()
    assert isinstance(idle[0], Piece)


def test_the_picture_has_a_box_per_node_and_shows_what_crosses(plan: CostGraphPlan, tmp_path: Path) -> None:
    dot = plan.to_dot(tmp_path / "placement.dot", rankdir="LR")
    assert dot == (tmp_path / "placement.dot").read_text(encoding="utf-8")
    assert "contiguous pieces on GPU:1 and GPU:0: largest load 7 ms" in dot
    assert dot.count("penwidth=1.0") == 2  # up to its bytes, and on: the value between the pieces
    assert "parameters" not in dot and "batch size" not in dot
    pytest.importorskip("pygraphviz")
    plan.to_svg(tmp_path / "placement.svg")
    assert ET.parse(tmp_path / "placement.svg").getroot().tag.endswith("svg")


def test_the_picture_has_no_stages_and_no_ops(plan: CostGraphPlan) -> None:
    assert plan.to_dot(level="layer") == plan.to_dot()
    with pytest.raises(UsageError, match="level='op': the picture of a cost graph shows all nodes"):
        plan.to_dot(level="op")
    with pytest.raises(UsageError, match="stage=0: the picture"):
        plan.to_dot(stage=0)
