"""Files and directories that appear together once all of them are written, or not at all.

Each is written into a temporary directory beside its place, and moved there at the end. A run that fails or is
interrupted before leaves what was there before, and nothing else. A run that is killed (SIGKILL) while it writes leaves
a directory `.partition-...`, which the next run into that directory removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from partitioner.cli.interruption import uninterrupted
from partitioner.errors import WriteError

PARTIAL = ".partition-"
"""How names of temporary directories begin."""

_numbers = count()


class Outputs:
    """What a run writes. `whole_outputs` makes one."""

    def __init__(self) -> None:
        self._areas: dict[Path, Path] = {}
        self._staged: dict[Path, Path] = {}
        self._dropped: list[Path] = []

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Have `write` write a file or a directory for `path`; missing directories are made with it.

        Devices and pipes (`/dev/stdout`) are written at once.

        Raises:
            WriteError: It cannot be written.
        """
        with write_errors(path):
            if _is_stream(path):
                write(path)
                return
            place = path.resolve()
            # The topmost directory that is missing is moved as a whole.
            whole = place
            while not whole.parent.exists():
                whole = whole.parent
            staged = self._area(whole.parent) / "new" / whole.name
            target = staged / place.relative_to(whole)
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target)
            if place.exists() and place.is_dir() != target.is_dir():
                raise IsADirectoryError(None, "it is a directory" if place.is_dir() else "it is a file")
            self._staged[whole] = staged

    def drop(self, path: Path) -> None:
        """Remove `path`, if it is there, when the others appear; not what this run writes."""
        if path.resolve() not in self._areas.values():
            self._dropped.append(path.resolve())

    def appear(self) -> None:
        """Move everything to its place; if that fails, everything is as before.

        Raises:
            WriteError: Something cannot be moved.
        """
        moved: list[tuple[Path, Path]] = []
        try:
            for place in (*self._dropped, *self._staged):
                with write_errors(place):
                    if place.exists():
                        kept = self._area(place.parent) / "old" / place.name
                        place.rename(kept)
                        moved.append((kept, place))
                    if place in self._staged:
                        self._staged[place].rename(place)
                        moved.append((place, self._staged[place]))
        except BaseException:
            for there, here in reversed(moved):
                there.rename(here)
            raise

    def clean_up(self) -> None:
        """Remove the temporary directories."""
        for area in self._areas.values():
            shutil.rmtree(area, ignore_errors=True)

    def _area(self, parent: Path) -> Path:
        """The temporary directory in `parent`: `new` holds what will appear, `old` what it replaces."""
        if parent not in self._areas:
            area = parent / f"{PARTIAL}{os.getpid()}-{next(_numbers)}"
            self._areas[parent] = area
            for name in ("new", "old"):
                (area / name).mkdir(parents=True)
        return self._areas[parent]


@contextlib.contextmanager
def whole_outputs() -> Iterator[Outputs]:
    """Outputs that appear when the block ends, or not at all if it raises.

    Raises:
        WriteError: An output cannot be written, or cannot be moved to its place.
    """
    outputs = Outputs()
    try:
        yield outputs
        with uninterrupted():
            outputs.appear()
            outputs.clean_up()
    except BaseException:
        with uninterrupted():
            outputs.clean_up()
        raise


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system within the block into errors of writing `path`.

    Raises:
        WriteError: The operating system raised an error.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"cannot write {path}: {error.strerror or error}", help="name another place to write, e.g. -o DIR"
        ) from error


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe or a device, or names one: `/dev/stdout` may be a file, which others have opened."""
    is_special = path.exists() and not (path.is_file() or path.is_dir())
    return is_special or path.absolute().parts[:2] == ("/", "dev")
