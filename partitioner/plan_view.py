"""A plan with its views: text, DOT, SVG. What the API returns; needs no TensorFlow, so a plan.json is shown at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partitioner.ir.plan import PlanDocument
from partitioner.report.dot import to_dot
from partitioner.report.svg import write_svg
from partitioner.report.text import render
from partitioner.spelling import as_python


@dataclass(frozen=True, kw_only=True)
class Plan(PlanDocument):
    """Where every op of a model goes, what that is predicted to cost and how good it is proved to be."""

    def to_text(
        self, files: Sequence[str | Path] = (), *, verbose: bool = False, spell: Callable[[str], str] = as_python
    ) -> str:
        """The report that the command line prints.

        Args:
            files: Paths just written, listed at the end.
            verbose: Whether to show everything; otherwise the report is one screen, at most 60 lines.
            spell: How it names arguments: `as_python` or `as_flags` of `partitioner.spelling`.
        """
        return render(self, files, verbose=verbose, spell=spell)

    def to_dot(self, path: str | Path | None = None, **options: Any) -> str:
        """The placement as a DOT picture: one cluster per device, cut tensors thick; written to `path` if given.

        Options are those of `partitioner.report.dot.to_dot`, named as in `keras.utils.plot_model`.
        """
        text = to_dot(self, **options)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_svg(self, path: str | Path, **options: Any) -> None:
        """The same picture as SVG.

        Raises:
            UsageError: Neither pygraphviz nor the `dot` program is installed.
        """
        write_svg(to_dot(self, **options), path)
