"""Arguments that several sub-commands share: values read from text before TensorFlow is loaded, and option groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from partitioner.errors import UsageError


def count(text: str) -> int:
    """Read an integer of at least 1."""
    return _at_least(text, 1)


def count_or_zero(text: str) -> int:
    """Read an integer of at least 0."""
    return _at_least(text, 0)


def count_or_auto(text: str) -> int | str:
    """Read an integer of at least 1, or `auto`."""
    if text == "auto":
        return text
    try:
        return count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor auto") from error


def counts_or_auto(text: str) -> int | str | tuple[int, ...]:
    """Read an integer of at least 1, a comma list of them, or `auto`."""
    return tuple(map(count, text.split(","))) if "," in text else count_or_auto(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    return _above_zero(text, "a number of seconds")


def work(text: str) -> float:
    """Read a number above 0."""
    return _above_zero(text, "a number")


def percentage(text: str) -> float:
    """Read a percentage of at least 0, `5%`, as a fraction."""
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):  # false for NaN too
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of at least 0, such as 5%")
    return value


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Sizes by input name from every `--input-shape`; the name of an only input is empty. None without this flag.

    Raises:
        UsageError: A text has no sizes, or an input is named twice.
    """
    sizes_by_input: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = ()
        if not shape or any(size < 1 for size in shape):
            raise UsageError(
                f"--input-shape {text!r}: expected sizes of at least 1 without the batch",
                help="e.g. --input-shape 28,28,1 or --input-shape image=28,28,1",
            )
        if name in sizes_by_input:
            raise UsageError(f"--input-shape names {name or 'the only input'} twice")
        sizes_by_input[name] = shape
    return sizes_by_input or None


def by_pattern(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Devices by pattern from every `--pin` or `--forbid`.

    Raises:
        UsageError: A text is not `REGEX=DEVICE`, or a pattern is pinned to two devices.
    """
    devices_of: dict[str, str] = {}
    for text in texts:
        pattern, _, devices = text.rpartition("=")
        if not pattern or not devices:
            raise UsageError(f"--{option} {text!r}: expected REGEX=DEVICE", help=f"e.g. --{option} 'conv.*=GPU:0'")
        if option == "pin" and devices_of.get(pattern, devices) != devices:
            raise UsageError(f"--pin puts {pattern!r} on {devices_of[pattern]} and on {devices}")
        devices_of[pattern] = (
            f"{devices_of[pattern]},{devices}" if option == "forbid" and pattern in devices_of else devices
        )
    return devices_of


def add_constraints(group: argparse._ActionsContainer, what: str) -> None:
    """Add pins, forbidden devices and colocation of `what`: layers or ops, nodes."""
    group.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="REGEX=DEVICE",
        help=f"keep matching {what} on a device; repeatable",
    )
    group.add_argument(
        "--forbid",
        action="append",
        default=[],
        metavar="REGEX=DEVICE[,DEVICE]",
        help=f"keep matching {what} off these devices; repeatable",
    )
    group.add_argument(
        "--colocate",
        action="append",
        default=[],
        metavar="REGEX",
        help=f"keep all {what} that match together, on one device; repeatable",
    )


def add_unsafe(parser: argparse._ActionsContainer) -> None:
    """Add the flag that trusts the code in a `.keras` file."""
    parser.add_argument(
        "--unsafe", action="store_true", help="run the Python code that a .keras file holds, e.g. of Lambda layers"
    )


def add_write(parser: argparse._ActionsContainer) -> None:
    """Add the flag to keep what was measured."""
    parser.add_argument(
        "--write",
        action="store_true",
        help="put what was measured into PLAN, and timeline.json and report.html beside it",
    )


def add_memory_limit(group: argparse._ActionsContainer) -> None:
    """Add the memory limit of devices."""
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="of each device: 8GiB, or GPU:0=8GiB,GPU:1=4GiB",
    )


def add_search(group: argparse._ActionsContainer, time_limit: str, *, default: float | None, otherwise: str) -> None:
    """Add the limits of a search; `time_limit` describes the time limit, `otherwise` what holds without one."""
    group.add_argument(
        "--time-limit",
        type=seconds,
        default=default,
        metavar="SECONDS",
        help=f"{time_limit} (default: {otherwise})",
    )
    group.add_argument(
        "--what-if",
        action="store_true",
        help="also plan for one more device, twice the bandwidth of links, and 1 GiB more where it is tightest",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="same seed, same plan (default: %(default)s)")


def add_output(group: argparse._ActionsContainer, stem: str, *, of_model: bool) -> None:
    """Add the directory of results, named after `stem` by default, and the pictures."""
    group.add_argument("-o", "--output", metavar="DIR", help=f"where to write (default: {stem}_partitioned)")
    add_pictures(group, of_model=of_model)
    group.add_argument("--dry-run", action="store_true", help="plan only, write no file")


def add_pictures(group: argparse._ActionsContainer, *, of_model: bool) -> None:
    """Add the pictures with what they show, and JSON; only a model has levels and stages."""
    group.add_argument("--dot", metavar="FILE", help="write the picture as DOT here")
    group.add_argument("--svg", metavar="FILE", help="draw the picture as SVG")
    group.add_argument("--png", metavar="FILE", help="draw the picture as PNG")
    if of_model:
        group.add_argument(
            "--level", choices=["stage", "layer", "op"], help="what a box of the picture stands for (default: layer)"
        )
        group.add_argument("--stage", type=count_or_zero, metavar="N", help="show this stage alone (default: all)")
    group.add_argument("--rankdir", choices=["TB", "LR", "BT", "RL"], help="direction of the picture (default: TB)")
    group.add_argument("--json", action="store_true", help="print plan.json and nothing else")


def add_verbosity(group: argparse._ActionsContainer) -> None:
    """Add `--quiet` and `--verbose`."""
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    amount.add_argument("-v", "--verbose", action="store_true", help="the whole report; library logs, tracebacks")


def _at_least(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value


def _above_zero(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:  # also true for NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected} above 0")
    return value
