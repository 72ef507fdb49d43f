"""What can be asked for: the options, and their texts read into values before TensorFlow is loaded."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence, Set
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from partitioner import __version__
from partitioner.cost_graphs.read import is_cost_graph
from partitioner.errors import UsageError

_EPILOG = """\
examples:
  partition model.py --devices GPU:0,GPU:1 --batch-size 256
  partition model.py --devices CPU:0,CPU:1 --strategy layer-split --pin 'enc.*=CPU:0'
  partition 'model.py:build_model(depth=50)' --devices GPU:0-3 \\
      --hardware a100-80gb --link nvlink3
  partition model.py --devices GPU:0,GPU:1 --microbatches 8 --schedule 1f1b
  partition model.py --devices GPU:0-3 --strategy mixed --replicas 2
  partition model.py --topology '64x dgx-h100' --dry-run
  partition model_partitioned/plan.json --svg placement.svg
  partition workload.json --devices GPU:0-5,CPU:0 --contiguous
  partition workload_partitioned/plan.json --check
  partition --list-hardware

exit codes:
  0  a plan was found                 4  proved infeasible
  1  a bug of ours                    5  time limit reached without a plan
  2  usage                            6  the placed model failed verification
  3  model not found or not traceable
"""

# What shows a plan.json again; every other option is about making a plan.
_FOR_A_PLAN = {"model", "dot", "svg", "json", "quiet", "verbose"}
# Likewise what checks it again, and what plans a cost graph.
_FOR_A_CHECK = {"model", "check", "workload", "quiet", "verbose"}
_FOR_A_COST_GRAPH = {
    *("model", "devices", "contiguous", "pin", "forbid", "colocate", "memory_limit", "time_limit", "work_limit"),
    *("what_if", "seed", "output", "dot", "svg", "json", "dry_run", "quiet", "verbose"),
}
# Likewise what shows the catalogue, which needs no MODEL.
_FOR_THE_CATALOGUE = {"model", "list_hardware", "json", "quiet", "verbose"}


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print with the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "), help="partition --help")


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line (`sys.argv` by default), each as the value it stands for.

    `input_shape`, `pin` and `forbid` are dictionaries (`input_shape` is None where none is given); a plan.json as MODEL
    takes only the options that show it.

    Raises:
        UsageError: An option is unknown, has a wrong value or does nothing here.
    """
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    lists = "--list-hardware" in given
    options, unknown = parser.parse_known_args(["", *given] if lists else given)
    if unknown:
        raise _unknown(parser, unknown[0])
    options.plans_cost_graph = is_cost_graph(options.model)
    options.shows_plan = options.model.endswith(".json") and not options.plans_cost_graph
    if lists:
        _refuse_idle(parser, options, _FOR_THE_CATALOGUE, "--list-hardware prints the catalogue and stops")
    elif options.plans_cost_graph:
        _refuse_idle(parser, options, _FOR_A_COST_GRAPH, f"{options.model} is a cost graph, not a model")
    elif options.check and options.shows_plan:
        _refuse_idle(parser, options, _FOR_A_CHECK, "--check compares a plan with its cost graph")
    elif options.check or options.workload:
        raise UsageError("--check and --workload are for a plan", help="partition plan.json --check")
    elif options.contiguous:
        raise UsageError(
            "--contiguous is for cost graphs; the stages of a model always are",
            help="leave it out",
        )
    elif options.work_limit is not None:
        raise UsageError("--work-limit is for cost graphs", help="of a model, --time-limit ends the search")
    elif options.shows_plan:
        _refuse_idle(parser, options, _FOR_A_PLAN, f"{options.model} is a plan to show again")
    elif not options.devices and not options.topology:
        raise UsageError("which devices? --devices is missing", help="e.g. --devices GPU:0,GPU:1 or CPU:0,CPU:1")
    written = [name for name in ("output", "dot", "svg") if getattr(options, name)]
    if options.dry_run and written:
        raise UsageError(f"--dry-run writes no file, but --{written[0]} asks for one")
    if options.costs not in ("analytic", "measured") and not Path(options.costs).is_file():
        raise UsageError(
            f"--costs: there is no file {options.costs!r}",
            help="analytic, measured, or the costs.json that `partition MODEL --costs measured` wrote",
        )
    options.input_shape = _shapes(options.input_shape)
    options.pin, options.forbid = _by_pattern("pin", options.pin), _by_pattern("forbid", options.forbid)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="partition",
        usage="partition MODEL --devices LIST [options]",
        description="Split a Keras model over devices: plan, place, verify.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation in a script would break when an option is added
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="PATH[:NAME]: a .py file with a model or a factory, a .keras file, a plan.json to show again, or a cost "
        "graph (msr-fiddle .json, PipeDream .txt), which is planned without a model",
    )
    _add_step(parser.add_argument_group("the step to plan"))
    _add_devices(parser.add_argument_group("the devices"))
    _add_search(parser.add_argument_group("the search"))
    _add_results(parser.add_argument_group("the results"))
    parser.add_argument("--version", action="version", version=f"partition {__version__}")
    return parser


def _add_step(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-size", type=_count, default=32, metavar="N", help="rows of a batch (default: %(default)s)"
    )
    group.add_argument(
        "--input-shape",
        action="append",
        default=[],
        metavar="[NAME=]D1,D2,...",
        help="sizes without the batch, where the model does not say; repeatable",
    )
    mode = group.add_mutually_exclusive_group()
    mode.add_argument(
        "--training",
        dest="training",
        action="store_true",
        default=True,
        help="plan the training step (default)",
    )
    mode.add_argument("--inference", dest="training", action="store_false", help="plan inference")
    group.add_argument("--loss", metavar="NAME", help="Keras loss (default: the compiled one, else mean_squared_error)")
    group.add_argument("--optimizer", metavar="NAME", help="Keras optimizer (default: the compiled one, else adam)")


def _add_devices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--devices",
        metavar="LIST",
        help="comma list with ranges: GPU:0,GPU:1 or GPU:0-3 or CPU:0,CPU:1; they need not be here",
    )
    group.add_argument("--hardware", metavar="NAME", help="what the devices are: a100-80gb, h100-sxm, t4, ...")
    group.add_argument("--link", metavar="NAME", help="what joins them: pcie4, nvlink3, ...")
    group.add_argument(
        "--topology",
        metavar="NAME|FILE.toml",
        help="in place of both: dgx-h100, '64x dgx-h100', or a file; --devices then takes some of its devices",
    )
    group.add_argument(
        "--costs",
        default="analytic",
        metavar="analytic|measured|FILE",
        help="seconds of ops from the hardware's figures, from running them on the devices that are here, or from the "
        "costs.json written after that (default: %(default)s)",
    )
    group.add_argument(
        "--list-hardware", action="store_true", help="print the devices, links and topologies that have names, and stop"
    )
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="use at most this much of each device: 8GiB, or GPU:0=8GiB,GPU:1=4GiB",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategy",
        choices=["auto", "single", "layer-split", "mirrored", "mixed"],
        default="auto",
        help="auto uses as many devices as pay, layer-split uses all; mirrored trains a replica of the model on each, "
        "mixed replicas of several devices (default: %(default)s)",
    )
    group.add_argument(
        "--replicas",
        type=_replicas,
        default="auto",
        metavar="N|N,N|auto",
        help="cut the devices into N runs, each with a copy of the model and its share of a batch; 3,1: three replicas "
        "with a device of their own each that share the fourth (default: %(default)s)",
    )
    group.add_argument(
        "--updates",
        choices=["sync", "async"],
        default="sync",
        help="sync: replicas update together; async: each updates shared parameters as soon as it can "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-staleness",
        type=_number,
        metavar="N",
        help="of async: how many updates of others may lie between reading parameters and updating them "
        "(default: 4 per replica)",
    )
    group.add_argument(
        "--objective",
        choices=["throughput", "latency", "memory"],
        default="throughput",
        help="least time of a step, least time of one input, or least memory on the fullest device "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--microbatches",
        type=_count_or_auto,
        default="auto",
        metavar="N|auto",
        help="pass the batch (of a replica) through the stages in N parts; auto takes as many as pay "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--schedule",
        choices=["auto", "sequential", "gpipe", "1f1b", "interleaved"],
        default="auto",
        help="in which order stages work on microbatches (default: %(default)s)",
    )
    group.add_argument(
        "--recompute",
        choices=["auto", "none", "all"],
        default="auto",
        help="stages whose backward pass reruns the forward pass to save memory; auto takes those that must "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="REGEX=DEVICE",
        help="keep matching layers or ops (of a cost graph, nodes) on a device; repeatable",
    )
    group.add_argument(
        "--forbid",
        action="append",
        default=[],
        metavar="REGEX=DEVICE[,DEVICE]",
        help="keep matching layers or ops off these devices; repeatable",
    )
    group.add_argument(
        "--colocate",
        action="append",
        default=[],
        metavar="REGEX",
        help="keep all layers or ops that match together, on one device; repeatable",
    )
    group.add_argument(
        "--contiguous", action="store_true", help="of cost graphs: give each device one piece of a chain"
    )
    group.add_argument(
        "--time-limit",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for tracing and the search, which then ends with the best found; it has at least 30, or all of fewer "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--work-limit",
        type=_work,
        metavar="WORK",
        help="of cost graphs: end the search after so much work (1 is about a second of a fast core), if that comes "
        "before the time limit; so the placement does not depend on how busy the machine is",
    )
    group.add_argument(
        "--what-if",
        action="store_true",
        help="also plan for one more device, twice the bandwidth of links, and 1 GiB more where it is tightest",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="same seed, same plan (default: %(default)s)")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-o", "--output", metavar="DIR", help="where to write (default: <model>_partitioned)")
    group.add_argument("--dot", metavar="FILE", help="write the picture as DOT here too")
    group.add_argument("--svg", metavar="FILE", help="draw the picture as SVG")
    group.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="run the placed model beside the unplaced one, on logical CPU devices in place of GPUs that are "
        "not here (default: when all devices are here)",
    )
    group.add_argument("--json", action="store_true", help="print plan.json and nothing else")
    group.add_argument("--dry-run", action="store_true", help="plan only, write no file")
    group.add_argument(
        "--check",
        action="store_true",
        help="of a plan.json for a cost graph: compute anew, by other code, whether it is allowed, its objective and "
        "whether its bound can be",
    )
    group.add_argument("--workload", metavar="FILE", help="of --check: the cost graph, if it is no longer where it was")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    amount.add_argument("-v", "--verbose", action="store_true", help="library logs and tracebacks on stderr")


def _unknown(parser: argparse.ArgumentParser, text: str) -> UsageError:
    if not text.startswith("-"):
        return UsageError(f"unexpected argument {text!r}: one MODEL at a time", help="partition --help")
    option = text.split("=")[0]
    known = sorted(set(re.findall(r"--[a-z-]+", parser.format_help())))
    close = get_close_matches(option, known, n=1)
    return UsageError(f"unknown option {option}", help=f"did you mean {close[0]}?" if close else "partition --help")


def _refuse_idle(parser: argparse.ArgumentParser, options: argparse.Namespace, used: Set[str], why: str) -> None:
    """Options that do nothing for what is only shown are told, not ignored."""
    idle = [name for name, value in vars(options).items() if name not in {*used, "shows_plan", "plans_cost_graph"}
            and value != parser.get_default(name)]  # fmt: skip
    if idle:
        flags = ["--inference" if name == "training" else f"--{name.replace('_', '-')}" for name in idle]
        raise UsageError(
            f"{why}; {', '.join(flags)} would do nothing",
            help="to plan, name a model: partition model.py --devices ...",
        )


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def _count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor auto") from error


def _replicas(text: str) -> int | str | tuple[int, ...]:
    sizes = tuple(map(_count, text.split(","))) if "," in text else ()
    return sizes or _count_or_auto(text)


def _number(text: str) -> int:
    if text == "0":
        return 0
    try:
        return _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0") from error


def _seconds(text: str) -> float:
    return _above_zero(text, "a number of seconds")


def _work(text: str) -> float:
    return _above_zero(text, "a number")


def _above_zero(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:  # also what is not a number
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected} above 0")
    return value


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    shapes: dict[str, tuple[int, ...]] = {}
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
        if name in shapes:
            raise UsageError(f"--input-shape names {name or 'the only input'} twice")
        shapes[name] = shape
    return shapes or None


def _by_pattern(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        pattern, _, devices = text.rpartition("=")
        if not pattern or not devices:
            raise UsageError(f"--{option} {text!r}: expected REGEX=DEVICE", help=f"e.g. --{option} 'conv.*=GPU:0'")
        if option == "pin" and found.get(pattern, devices) != devices:
            raise UsageError(f"--pin puts {pattern!r} on {found[pattern]} and on {devices}")
        found[pattern] = f"{found[pattern]},{devices}" if option == "forbid" and pattern in found else devices
    return found
