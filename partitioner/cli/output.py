"""Write results: to a new directory or an earlier output directory, to pictures, and to stdout."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from partitioner.cli.console import print_result, without_native_notices
from partitioner.errors import UsageError, WriteError
from partitioner.spelling import as_flags

if TYPE_CHECKING:
    from partitioner.plan_view import Plan

_OURS = {"plan.json", "placement.dot", "timeline.json", "report.html", "placed_model", "costs.json"}


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

    def to_dot(self, path: Path, /) -> str:
        """Write the picture."""
        ...

    def to_svg(self, path: Path, /) -> None:
        """Draw the picture."""


def output_directory(options: argparse.Namespace, source: str) -> Path:
    """The output directory: `--output`, or `<source>_partitioned`. Called before any work is done.

    Raises:
        UsageError: It is a file or holds files that partition did not write, a picture has no directory, or `--dry-run`
            is asked to write.
    """
    written = [name for name in ("output", "dot", "svg") if getattr(options, name)]
    if options.dry_run and written:
        raise UsageError(f"--dry-run writes no file, but --{written[0]} asks for one")
    refuse_missing_directories(options)
    stem = Path(source.split(":")[0]).stem or "model"
    directory = Path(options.output or f"{stem}_partitioned")
    if options.dry_run or not directory.exists():
        return directory
    if not directory.is_dir():
        raise UsageError(f"the output {str(directory)!r} is a file", help="name a directory: -o DIR")
    with write_errors():
        entries = sorted(entry.name for entry in directory.iterdir())
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
    for name in ("dot", "svg"):
        path = getattr(options, name)
        if path and not Path(path).parent.is_dir():
            parent = Path(path).parent
            raise UsageError(f"--{name}: there is no directory {str(parent)!r}", help=f"mkdir -p {parent}")


def write_plan(
    plan: Document, directory: Path, more: Mapping[str, Callable[[Path], object]] | None = None
) -> list[Path]:
    """Write plan.json, placement.dot and further files; returns the written paths.

    Args:
        plan: The plan.
        directory: Where to write.
        more: By name, what writes a file.

    Raises:
        WriteError: A file cannot be written.
    """
    writers = {"plan.json": plan.save, "placement.dot": plan.to_dot, **(more or {})}
    with write_errors():
        directory.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            write(directory / name)
    return [directory / name for name in writers]


def views(plan: Plan) -> dict[str, Callable[[Path], object]]:
    """What writes the views that lie beside plan.json, by name."""

    def write_page(path: Path) -> None:
        with without_native_notices(enabled=True):  # notices of fontconfig
            plan.to_html(path)

    return {"timeline.json": plan.to_timeline, "report.html": write_page}


def write_views(plan: Plan, path: Path) -> list[Path]:
    """Write a plan, and its views beside it; returns the written paths.

    Raises:
        WriteError: A file cannot be written.
    """
    files = [path]
    with write_errors():
        plan.save(path)
        for name, write in views(plan).items():
            files.append(path.parent / name)
            write(files[-1])
    return files


def write_pictures(plan: Document, options: argparse.Namespace) -> list[Path]:
    """Write the pictures of `--dot` and `--svg`; returns the written paths.

    Raises:
        WriteError: A file cannot be written.
        UsageError: No program that draws SVG is installed.
    """
    files = []
    with write_errors():
        if options.dot:
            files.append(Path(options.dot))
            plan.to_dot(files[-1])
        if options.svg:
            files.append(Path(options.svg))
            with without_native_notices(enabled=not options.verbose):  # notices of fontconfig
                plan.to_svg(files[-1])
    return files


def print_plan(plan: Document, options: argparse.Namespace, files: Sequence[Path]) -> None:
    """Print the report with the files that were written, or plan.json."""
    print_result(
        plan.to_json() + "\n" if options.json else plan.to_text(files=files, verbose=options.verbose, spell=as_flags)
    )


@contextlib.contextmanager
def write_errors() -> Iterator[None]:
    """Turn errors of the operating system within the block into errors of writing.

    Raises:
        WriteError: The operating system raised an error.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"cannot write {error.filename or 'the results'}: {error.strerror or error}",
            help="name another place to write, e.g. -o DIR",
        ) from error
