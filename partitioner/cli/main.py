"""Entry point: choose the sub-command, run it, and turn its errors into a message and an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from partitioner import __version__
from partitioner.cli.commands import bench, check, compile, diff, doctor, explain, graph, hardware, show, verify, worker
from partitioner.cli.console import library_logs
from partitioner.cli.interruption import Terminated, interruptions_raised
from partitioner.cli.parser import Parser
from partitioner.errors import PartitionError, UsageError, WriteError

SUB_COMMANDS: dict[str, ModuleType] = {
    "graph": graph,
    "show": show,
    "diff": diff,
    "explain": explain,
    "check": check,
    "verify": verify,
    "bench": bench,
    "hardware": hardware,
    "doctor": doctor,
    "worker": worker,
}
"""The sub-commands; any other first word is a model."""

# 128 + SIGINT and 128 + SIGTERM, as shells report them.
_INTERRUPTED, _TERMINATED = 130, 143

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with `arguments` (`sys.argv` by default) and return its exit code."""
    atexit.register(gc.freeze)  # a last collection of garbage would visit every op of the graphs, for seconds
    verbose = False
    try:
        command, parser, rest = _picked(list(sys.argv[1:] if arguments is None else arguments))
        command.add_arguments(parser)
        options = parser.read(rest)
        verbose = getattr(options, "verbose", False)
        with library_logs(shown=verbose), interruptions_raised():
            return command.run(options)
    except PartitionError as error:
        if verbose:
            traceback.print_exc()
        print(f"error: {error.for_command_line()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Terminated:
        print("terminated", file=sys.stderr)
        return _TERMINATED
    except OSError as error:
        if verbose or not error.filename:
            traceback.print_exc()
        print(f"error: {_of_system(error).for_command_line()}", file=sys.stderr)
        return _of_system(error).exit_code
    except Exception as error:
        traceback.print_exc()
        print(
            f"error: a bug in partition {__version__}: {type(error).__name__}: {error}\n"
            "   help: please report it with the lines above and the command line",
            file=sys.stderr,
        )
        return 1


def _of_system(error: OSError) -> PartitionError:
    """What the operating system refused, where nobody said it better: no room to write, or a file it does not give."""
    kind = WriteError if error.errno in _NO_ROOM else UsageError
    name = str(error.filename or "a file")
    return kind(f"cannot use {name if len(name) < 200 else name[:200] + '...'}: {error.strerror or error}")


def _picked(arguments: list[str]) -> tuple[ModuleType, Parser, list[str]]:
    """The sub-command, its parser, and the arguments for it."""
    first = arguments[0] if arguments else ""
    if first in SUB_COMMANDS:
        return SUB_COMMANDS[first], Parser(prog=f"partition {first}"), arguments[1:]
    return compile, Parser(prog="partition", sub_commands=SUB_COMMANDS), arguments
