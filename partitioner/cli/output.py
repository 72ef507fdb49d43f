"""Write results: to a new directory or an earlier output directory, to pictures, and to stdout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from partitioner.cli.console import print_result, without_native_notices
from partitioner.cli.whole_outputs import PARTIAL, Outputs, write_errors
from partitioner.errors import UsageError
from partitioner.spelling import as_flags

if TYPE_CHECKING:
    from partitioner.plan_view import Plan

_PICTURES = ("dot", "svg", "png")
_OF_A_PLAN = {"plan.json", "placement.dot", "timeline.json", "report.html", "placed_model"}
_OURS = {*_OF_A_PLAN, "costs.json"}


class Document(Protocol):
    """A plan, of a model or of a cost graph."""

    def save(self, path: Path, /) -> None:
        """Write plan.json."""

    def to_json(self) -> str:
        """The text of plan.json."""
        ...

    def to_text(
        self, files: Sequence[str | Path] = (), *, verbose: bool = False, spell: Callable[[str], str] = ...
    ) -> str:
        """The report."""
        ...

    def to_dot(self, path: Path, /, **options: Any) -> str:
        """Write the picture."""
        ...

    def to_svg(self, path: Path, /, **options: Any) -> None:
        """Draw the picture as SVG."""

    def to_png(self, path: Path, /, **options: Any) -> None:
        """Draw the picture as PNG."""


def output_directory(options: argparse.Namespace, source: str) -> Path:
    """The output directory: `--output`, or `<source>_partitioned`. Called before any work is done.

    Raises:
        UsageError: It is a file or holds files that partition did not write, a picture has no directory, or `--dry-run`
            is asked to write.
    """
    written = [name for name in ("output", *_PICTURES) if getattr(options, name)]
    if options.dry_run and written:
        raise UsageError(f"--dry-run writes no file, but --{written[0]} asks for one")
    refuse_missing_directories(options)
    stem = Path(source.split(":")[0]).stem or "model"
    directory = Path(options.output or f"{stem}_partitioned")
    if options.dry_run or not directory.exists():
        return directory
    if not directory.is_dir():
        raise UsageError(f"the output {str(directory)!r} is a file", help="name a directory: -o DIR")
    with write_errors(directory):
        entries = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith(PARTIAL))
    others = [name for name in entries if name not in _OURS]
    if others or (entries and "plan.json" not in entries):
        raise UsageError(
            f"the output directory {str(directory)!r} holds files that partition did not write",
            notes=[f"among them: {', '.join(others[:5]) or 'a placed_model without its plan.json'}"],
            help="give another directory: -o DIR",
        )
    return directory


def refuse_missing_directories(options: argparse.Namespace) -> None:
    """Refuse a picture in a missing directory.

    Raises:
        UsageError: The directory is missing.
    """
    for name in (*_PICTURES, "html", "timeline"):
        path = getattr(options, name, None)
        if path and not Path(path).parent.is_dir():
            parent = Path(path).parent
            raise UsageError(f"--{name}: there is no directory {str(parent)!r}", help=f"mkdir -p {parent}")


def write_plan(
    outputs: Outputs,
    plan: Document,
    directory: Path,
    options: argparse.Namespace,
    more: Mapping[str, Callable[[Path], object]] | None = None,
) -> list[Path]:
    """Write plan.json, placement.dot and further files; returns their paths.

    What an earlier plan left in the directory goes, but for measured costs. A picture of a stage that the plan lacks is
    told on stderr, and placement.dot shows all of them.

    Raises:
        WriteError: A file cannot be written.
    """

    def write_dot(path: Path) -> None:
        try:
            plan.to_dot(path, **drawing(options))
        except UsageError as error:
            _warn(error)
            plan.to_dot(path)

    writers = {"plan.json": plan.save, "placement.dot": write_dot, **(more or {})}
    for name, write in writers.items():
        outputs.write(directory / name, write)
    for name in sorted(_OF_A_PLAN - set(writers)):
        outputs.drop(directory / name)
    for left in directory.glob(f"{PARTIAL}*"):  # of a run that was killed while it wrote
        outputs.drop(left)
    return [directory / name for name in writers]


def views(plan: Plan) -> dict[str, Callable[[Path], object]]:
    """What writes the views that lie beside plan.json, by name."""

    def write_page(path: Path) -> None:
        with without_native_notices(enabled=True):  # notices of fontconfig
            plan.to_html(path)

    return {"timeline.json": plan.to_timeline, "report.html": write_page}


def write_views(outputs: Outputs, plan: Plan, path: Path) -> list[Path]:
    """Write a plan, and its views beside it; returns their paths.

    Raises:
        WriteError: A file cannot be written.
    """
    writers = {path.name: plan.save, **views(plan)}
    for name, write in writers.items():
        outputs.write(path.parent / name, write)
    return [path.parent / name for name in writers]


def write_pictures(
    outputs: Outputs, plan: Document, options: argparse.Namespace, *, needed: bool = False
) -> list[Path]:
    """Write the pictures of `--dot`, `--svg` and `--png`; returns their paths.

    Args:
        outputs: What the run writes.
        plan: The plan.
        options: The options of the command.
        needed: Whether a picture that cannot be drawn is an error; else it is told on stderr, and the run goes on.

    Raises:
        WriteError: A file cannot be written.
        UsageError: A picture is needed, and the plan does not have it, or no program that draws it is installed.
    """
    files = []
    drawn = {"dot": plan.to_dot, "svg": plan.to_svg, "png": plan.to_png}
    for name in _PICTURES:
        if not (path := getattr(options, name)):
            continue
        try:
            with without_native_notices(enabled=not options.verbose):  # notices of fontconfig
                outputs.write(Path(path), partial(drawn[name], **drawing(options)))
            files.append(Path(path))
        except UsageError as error:
            if needed:
                raise
            _warn(error, f"{path} was not written: ")
    return files


def drawing(options: argparse.Namespace) -> dict[str, Any]:
    """What the picture shows, as far as the command line says."""
    names = ("level", "stage", "rankdir")
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def _warn(error: UsageError, before: str = "") -> None:
    print(f"warning: {before}{error.for_command_line()}", file=sys.stderr, flush=True)


def print_plan(plan: Document, options: argparse.Namespace, files: Sequence[Path]) -> None:
    """Print the report with the files that were written, or plan.json."""
    print_result(
        plan.to_json() + "\n" if options.json else plan.to_text(files=files, verbose=options.verbose, spell=as_flags)
    )
