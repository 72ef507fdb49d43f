"""A DOT text drawn as SVG, by pygraphviz (its wheels bundle Graphviz) or the `dot` program."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from partitioner.errors import UsageError


def write_svg(dot_text: str, path: str | Path) -> None:
    """Draw `dot_text` to the SVG file `path`.

    Raises:
        UsageError: Neither pygraphviz nor a `dot` program is there, or Graphviz refuses the text.
    """
    Path(path).write_bytes(draw_svg(dot_text))


def draw_svg(dot_text: str) -> bytes:
    """The SVG (UTF-8) of `dot_text`.

    Raises:
        UsageError: As for `write_svg`.
    """
    if importlib.util.find_spec("pygraphviz") is not None:
        return _with_pygraphviz(dot_text)
    program = shutil.which("dot")
    if program is not None:
        return _with_program(program, dot_text)
    raise UsageError(
        "an SVG needs Graphviz, and neither pygraphviz nor a `dot` program is installed",
        notes=["the DOT file can be drawn anywhere: dot -Tsvg placement.dot -o placement.svg"],
        help="pip install pygraphviz",
    )


def _with_pygraphviz(dot_text: str) -> bytes:
    import pygraphviz  # optional, and slow to import: only when an SVG is asked for

    try:
        drawn = pygraphviz.AGraph(string=dot_text).draw(format="svg", prog="dot")
    except (ValueError, OSError) as error:
        raise UsageError("Graphviz cannot draw the DOT text", notes=str(error).splitlines()[:5]) from error
    assert isinstance(drawn, bytes)
    return drawn


def _with_program(program: str, dot_text: str) -> bytes:
    done = subprocess.run([program, "-Tsvg"], input=dot_text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise UsageError("Graphviz cannot draw the DOT text", notes=lines[:5])
    return done.stdout
