"""Parse a command line: errors in a single line with a help line, a short help and a long help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from partitioner.cli.old_flags import refuse_old_flags
from partitioner.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, where argparse prints the usage and exits.

    Args:
        prog: `partition`, or `partition show`.
        sub_commands: Names to suggest for a mistyped first argument.
    """

    def __init__(self, *, prog: str, sub_commands: Collection[str] = ()) -> None:
        super().__init__(
            prog=prog,
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=26),
            allow_abbrev=False,  # an abbreviation in a script would break when an option is added
            add_help=False,
        )
        self.sub_commands = sub_commands
        self._everyday: Collection[str] | None = None
        self._long_epilog: str | None = None

    def error(self, message: str) -> NoReturn:
        """Raise a usage error that refers to the help."""
        raise UsageError(message.removeprefix("argument "), help=f"{self.prog} --help")

    def add_help_options(self, *, everyday: Collection[str] | None = None, long_epilog: str | None = None) -> None:
        """Add `--help`, and `--help-all` where it shows more.

        Args:
            everyday: The options that `--help` shows, by destination; all if None.
            long_epilog: The epilog of `--help-all`, in place of the short epilog.
        """
        self._everyday, self._long_epilog = everyday, long_epilog
        self.add_argument("-h", "--help", action=_Help, help="show this and exit")
        if everyday is not None:
            self.add_argument("--help-all", action=_Help, help="show every option and exit")

    def print_everything(self) -> None:
        """Print the long help."""
        self.epilog = self._long_epilog or self.epilog
        self.print_help()

    def print_everyday(self) -> None:
        """Print the short help; do not parse with this parser afterwards."""
        for action in self._actions:
            if self._everyday is not None and action.dest not in self._everyday:
                action.help = argparse.SUPPRESS
        self.print_help()

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line as values, and in `given` the flags that were typed, by destination.

        Raises:
            UsageError: An option is unknown, was removed in an earlier version, or has a wrong value.
        """
        refuse_old_flags(arguments, self._option_string_actions)
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            raise self._unknown(unknown[0], str(getattr(options, "model", "")))
        typed = [text.partition("=")[0] for text in arguments]
        actions = self._option_string_actions
        options.given = {actions[flag].dest: flag for flag in typed if flag in actions}
        return options

    def _unknown(self, text: str, first: str) -> UsageError:
        if text.startswith("-"):
            option = text.split("=")[0]
            known = {name.lstrip("-"): name for name in sorted(self._option_string_actions)}
            close = get_close_matches(option.lstrip("-"), known, n=1)
            help = f"did you mean {known[close[0]]}?" if close else f"{self.prog} --help"
            return UsageError(f"unknown option {option}", help=help)
        if close := get_close_matches(first, sorted(self.sub_commands), n=1):
            return UsageError(
                f"unexpected argument {text!r}: {first!r} is read as a MODEL",
                help=f"a sub-command is the first word: partition {close[0]} ...",
            )
        expected = "one MODEL at a time" if self.sub_commands else "see what it takes"
        return UsageError(f"unexpected argument {text!r}: {expected}", help=f"{self.prog} --help")


class _Help(argparse.Action):
    """Prints the help, short or long, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **given: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **given)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        if self.dest == "help_all":
            parser.print_everything()
        else:
            parser.print_everyday()
        sys.exit(0)
