"""Errors for the user: an exception per exit code, each with the offender, the numbers and a help line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from partitioner.spelling import as_flags, as_python


class PartitionError(Exception):
    """An error the user can act on. The command line prints it and exits with `exit_code`.

    Args:
        message: A line that names the offender.
        where: The place in the user's world: `file.py:12 (build_model)`, a layer, a device.
        notes: Lines with the numbers, units included.
        help: A command or change that would work.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, where: str | None = None, notes: Sequence[str] = (), help: str | None = None
    ) -> None:
        self.where = where
        # Arguments are still marked, so that another error can contain it.
        self.as_written = (message, tuple(notes), help)
        super().__init__(str(self))  # all of it: Keras makes a new error of the first argument

    @property
    def message(self) -> str:
        """The line that names the offender."""
        return as_python(self.as_written[0])

    @property
    def notes(self) -> tuple[str, ...]:
        """The numbers, a line each."""
        return tuple(map(as_python, self.as_written[1]))

    @property
    def help(self) -> str | None:
        """The command or change that would work."""
        return as_python(self.as_written[2]) if self.as_written[2] else None

    def also(self, *, notes: Sequence[str] = (), help: str | None = None) -> Self:
        """This error with more notes, and another change that would work."""
        message, own, own_help = self.as_written
        self.as_written = (message, (*own, *notes), ", or ".join(filter(None, (own_help, help))) or None)
        self.args = (str(self),)
        return self

    def __str__(self) -> str:
        return self._text(as_python)

    def for_command_line(self) -> str:
        """The error with arguments spelled as flags."""
        return self._text(as_flags)

    def _text(self, spell: Callable[[str], str]) -> str:
        message, notes, help = self.as_written
        lines = [message]
        if self.where:
            lines.append(f"  --> {self.where}")
        lines += [f"   |  {note}" for note in notes]
        if help:
            lines.append(f"   help: {help}")
        return spell("\n".join(lines))


class UsageError(PartitionError):
    """An option or argument is wrong (exit code 2)."""

    exit_code = 2


class ModelError(PartitionError):
    """The model was not found, or could not be traced (exit code 3)."""

    exit_code = 3


class InfeasibleError(PartitionError):
    """No placement satisfies the requirements (exit code 4)."""

    exit_code = 4


class TimeLimitError(PartitionError):
    """The time limit was reached before any plan was found (exit code 5)."""

    exit_code = 5


class VerificationError(PartitionError):
    """The emitted model does not do what the plan or the unplaced model says (exit code 6)."""

    exit_code = 6


class CheckError(PartitionError):
    """A requested check failed (exit code 7)."""

    exit_code = 7


class WriteError(PartitionError):
    """A file could not be written (exit code 8)."""

    exit_code = 8
