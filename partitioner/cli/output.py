"""Where results go: a directory that is ours or new, and the pictures asked for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from partitioner.cli.console import without_native_notices
from partitioner.errors import UsageError
from partitioner.plan_view import Plan

_OURS = {"plan.json", "placement.dot", "placed_model", "costs.json"}


def output_directory(options: argparse.Namespace) -> Path:
    """The directory to write: `--output`, or `<model>_partitioned`. Called before any work is done.

    Raises:
        UsageError: It is a file or holds files that partition did not write, or a picture has no directory.
    """
    for name in ("dot", "svg"):
        if getattr(options, name) and not Path(getattr(options, name)).parent.is_dir():
            parent = Path(getattr(options, name)).parent
            raise UsageError(f"--{name}: there is no directory {str(parent)!r}", help=f"mkdir -p {parent}")
    stem = Path(options.model.split(":")[0]).stem or "model"
    directory = Path(options.output or f"{stem}_partitioned")
    if options.dry_run or not directory.exists():
        return directory
    if not directory.is_dir():
        raise UsageError(f"the output {str(directory)!r} is a file", help="name a directory: -o DIR")
    with _write_errors():
        found = sorted(entry.name for entry in directory.iterdir())
    others = [name for name in found if name not in _OURS]
    if others or (found and "plan.json" not in found):
        raise UsageError(
            f"the output directory {str(directory)!r} holds files that partition did not write",
            notes=[f"found: {', '.join(others[:5]) or 'a placed_model without its plan.json'}"],
            help="give another one: -o DIR",
        )
    return directory


def write_plan(plan: Plan, directory: Path, write_placed_model: Callable[[Path], None] | None) -> list[Path]:
    """Write plan.json, placement.dot and the placed model; the paths written.

    Raises:
        UsageError: A file cannot be written.
    """
    files = [directory / "plan.json", directory / "placement.dot"]
    with _write_errors():
        directory.mkdir(parents=True, exist_ok=True)
        plan.save(files[0])
        plan.to_dot(files[1])
        if write_placed_model is not None:
            files.append(directory / "placed_model")
            write_placed_model(files[-1])
    return files


def write_pictures(plan: Plan, options: argparse.Namespace) -> list[Path]:
    """Write what `--dot` and `--svg` ask for; the paths written.

    Raises:
        UsageError: A file cannot be written, or nothing is installed that draws SVG.
    """
    files = []
    with _write_errors():
        if options.dot:
            plan.to_dot(options.dot)
            files.append(Path(options.dot))
        if options.svg:
            with without_native_notices(enabled=not options.verbose):  # fontconfig's
                plan.to_svg(options.svg)
            files.append(Path(options.svg))
    return files


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or 'the results'}: {error.strerror or error}",
            help="name another place: -o DIR",
        ) from error
