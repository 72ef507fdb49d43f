"""A DOT text drawn as SVG or PNG, by pygraphviz (its wheels bundle Graphviz) or the `dot` program."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from partitioner.errors import UsageError


class NoRendererError(UsageError):
    """Nothing that draws a DOT text is installed."""


def write_image(dot_text: str, path: str | Path, kind: str) -> None:
    """Draw `dot_text` to the file `path`; `kind` is `svg` or `png`.

    Raises:
        NoRendererError: Neither pygraphviz nor a `dot` program is there.
        UsageError: Graphviz refuses the text.
    """
    Path(path).write_bytes(draw_image(dot_text, kind))


def draw_image(dot_text: str, kind: str) -> bytes:
    """The SVG (UTF-8) or PNG of `dot_text`.

    Raises:
        NoRendererError, UsageError: As for `write_image`.
    """
    if importlib.util.find_spec("pygraphviz") is not None:
        return _with_pygraphviz(dot_text, kind)
    program = shutil.which("dot")
    if program is not None:
        return _with_program(program, dot_text, kind)
    raise NoRendererError(
        f"{'an SVG' if kind == 'svg' else 'a PNG'} needs Graphviz, and neither pygraphviz nor a `dot` program is "
        "installed",
        notes=[f"a DOT file can be drawn anywhere: dot -T{kind} placement.dot -o placement.{kind}"],
        help="pip install pygraphviz",
    )


def _with_pygraphviz(dot_text: str, kind: str) -> bytes:
    import pygraphviz  # slow to import: only when a picture is asked for

    try:
        drawn = pygraphviz.AGraph(string=dot_text).draw(format=kind, prog="dot")
    except (ValueError, OSError) as error:
        raise UsageError("Graphviz cannot draw the DOT text", notes=str(error).splitlines()[:5]) from error
    assert isinstance(drawn, bytes)
    return drawn


def _with_program(program: str, dot_text: str, kind: str) -> bytes:
    done = subprocess.run([program, f"-T{kind}"], input=dot_text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise UsageError("Graphviz cannot draw the DOT text", notes=lines[:5])
    return done.stdout
