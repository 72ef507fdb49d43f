"""`partition MODEL --devices ...`: one command from a model file to a placed model."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner import __version__
from partitioner.errors import PartitionError, UsageError, VerificationError

if TYPE_CHECKING:
    from partitioner.api import Plan

_EPILOG = """\
examples:
  partition model.py --devices GPU:0,GPU:1 --batch-size 256
  partition model.py:build_model(depth=50) --devices GPU:0-3 --hardware a100-80gb --link nvlink3
  partition model.py --devices CPU:0,CPU:1 --strategy layer-split --pin 'encoder=CPU:0'
  partition model_partitioned/plan.json --svg placement.svg

exit codes: 0 plan found; 1 a bug of ours; 2 usage; 3 model not found or not traceable; 4 proved infeasible;
5 time limit reached without a plan; 6 the emitted model failed verification
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    # TensorFlow reads this when it is imported; its notices are not ours to show.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.verbose else "3")
    try:
        with _quiet_library_logs(options):
            _run(options)
    except PartitionError as error:
        print(f"error: {error}", file=sys.stderr)
        if options.verbose:
            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        traceback.print_exc()
        print(f"error: a bug in partition {__version__}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="partition",
        description="Split a Keras model over devices: plan, place, verify.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="PATH[:NAME]: a .py file with a model or a factory, a .keras file, or a plan.json to show again",
    )
    parser.add_argument(
        "--devices", metavar="LIST", help="comma list with ranges, e.g. GPU:0,GPU:1 or GPU:0-3 or CPU:0,CPU:1"
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="rows of a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--input-shape", action="append", default=[], metavar="[NAME=]D1,D2,...", help="sizes without the batch; repeatable"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--training", dest="training", action="store_true", default=True, help="plan the training step (default)"
    )
    mode.add_argument("--inference", dest="training", action="store_false", help="plan inference")
    parser.add_argument(
        "--strategy",
        choices=["auto", "single", "layer-split"],
        default="auto",
        help="auto uses as many devices as pay, layer-split uses all (default: %(default)s)",
    )
    parser.add_argument(
        "--objective",
        choices=["throughput", "latency", "memory"],
        default="throughput",
        help="least time of a step, or least memory on the fullest device (default: %(default)s)",
    )
    parser.add_argument("--hardware", metavar="NAME", help="what the devices are, e.g. a100-80gb, h100-sxm, t4")
    parser.add_argument("--link", metavar="NAME", help="what joins them, e.g. pcie4, nvlink3")
    parser.add_argument("--memory-limit", metavar="SIZE", help="use at most this much of each device: 8GiB, or GPU:0=8GiB,GPU:1=4GiB")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="REGEX=DEVICE", help="keep matching layers or ops on a device; repeatable"
    )
    parser.add_argument("--loss", metavar="NAME", help="Keras loss (default: the compiled one, else mean_squared_error)")
    parser.add_argument("--optimizer", metavar="NAME", help="Keras optimizer (default: the compiled one, else adam)")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="SECONDS", help="for the solver (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="same seed, same plan (default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="DIR", help="where to write (default: <model>_partitioned)")
    parser.add_argument("--dot", metavar="FILE", help="write the DOT picture here too")
    parser.add_argument("--svg", metavar="FILE", help="draw the picture as SVG")
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="run the placed model beside the unplaced one (default: when the devices are here)",
    )
    parser.add_argument("--json", action="store_true", help="print plan.json and nothing else")
    parser.add_argument("--dry-run", action="store_true", help="plan only, write no file")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    amount.add_argument("-v", "--verbose", action="store_true", help="library logs and tracebacks on stderr")
    parser.add_argument("--version", action="version", version=f"partition {__version__}")
    return parser


def _run(options: argparse.Namespace) -> None:
    source = Path(options.model)
    if source.suffix == ".json":
        _show_again(options, source)
        return
    if not options.devices:
        raise UsageError("which devices? --devices is missing", help="e.g. --devices GPU:0,GPU:1 or CPU:0,CPU:1")
    from partitioner.planner.topology import parse_devices

    names = parse_devices(options.devices)  # wrong names are told before TensorFlow is loaded
    shapes, pins = _shapes(options.input_shape), _pins(options.pin)
    directory = _output_directory(options)
    progress = _Progress(enabled=not options.quiet)

    progress("loading TensorFlow")
    from partitioner import api

    with contextlib.redirect_stdout(sys.stderr):
        plan, files = _compile(api, options, [n.canonical for n in names], shapes, pins, directory, progress)
    progress.done()
    print(plan.to_json() if options.json else plan.to_text(files=files))
    if plan.verification is not None and not plan.verification.passed:
        raise _verification_error(plan)


def _compile(
    api: Any,
    options: argparse.Namespace,
    devices: list[str],
    shapes: dict[str, tuple[int, ...]] | None,
    pins: dict[str, str],
    directory: Path,
    progress: _Progress,
) -> tuple[Plan, list[Path]]:
    """Load, plan, place, verify, write."""
    emits = not options.dry_run or options.verify
    stand_ins = api.set_up_devices(devices) if emits else {}
    progress(f"loading {options.model}")
    loaded = api.load_model(options.model)
    progress("tracing and planning")
    plan = api.plan(
        loaded.model,
        devices=devices,
        batch_size=options.batch_size,
        input_shape=shapes,
        training=options.training,
        strategy=options.strategy,
        objective=options.objective,
        hardware=options.hardware,
        link=options.link,
        pins=pins,
        memory_limit=options.memory_limit,
        loss=options.loss,
        optimizer=options.optimizer,
        example_inputs=loaded.example_inputs,
        example_targets=loaded.example_targets,
        time_limit=options.time_limit,
        seed=options.seed,
        source=options.model,
    )
    placed = None
    if emits:
        progress("placing")
        placed = api.place(loaded.model, plan)
        are_here = all(stand_ins[name] == name for name in plan.used_devices)
        if options.verify or (options.verify is None and are_here and not options.dry_run):
            progress("verifying against the unplaced model")
            plan = api.with_verification(plan, api.verify(loaded.model, placed))
    return plan, _write(api, options, plan, placed, directory, progress)


def _write(
    api: Any, options: argparse.Namespace, plan: Plan, placed: Any, directory: Path, progress: _Progress
) -> list[Path]:
    """Write the artefacts; a placed model that failed its verification is not written."""
    if options.dry_run:
        return []
    progress(f"writing {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / "plan.json", directory / "placement.dot"]
    plan.save(files[0])
    plan.to_dot(files[1])
    if placed is not None and (plan.verification is None or plan.verification.passed):
        files.append(directory / "placed_model")
        api.write_saved_model(placed, files[-1])
    return [*files, *_pictures(options, plan)]


def _pictures(options: argparse.Namespace, plan: Plan) -> list[Path]:
    files = []
    if options.dot:
        plan.to_dot(options.dot)
        files.append(Path(options.dot))
    if options.svg:
        plan.to_svg(options.svg)
        files.append(Path(options.svg))
    return files


def _show_again(options: argparse.Namespace, path: Path) -> None:
    """Render a plan.json anew."""
    import msgspec

    from partitioner.plan_view import Plan

    try:
        plan = Plan.load(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {str(path)!r}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a plan: {error}", help="give a plan.json that partition wrote") from error
    files = [] if options.dry_run else _pictures(options, plan)
    print(plan.to_json() if options.json else plan.to_text(files=files))


def _output_directory(options: argparse.Namespace) -> Path:
    """Where to write; a directory with other people's files is refused before any work is done."""
    stem = Path(options.model.split(":")[0]).stem or "model"
    directory = Path(options.output or f"{stem}_partitioned")
    if options.dry_run or not directory.exists():
        return directory
    if not directory.is_dir():
        raise UsageError(f"the output {str(directory)!r} is a file", help="-o DIR")
    ours = {"plan.json", "placement.dot", "placed_model"}
    others = sorted(entry.name for entry in directory.iterdir() if entry.name not in ours)
    has_plan = (directory / "plan.json").exists()
    if others or (any(directory.iterdir()) and not has_plan):
        raise UsageError(
            f"the output directory {str(directory)!r} holds files that partition did not write",
            notes=[f"found: {', '.join(others[:5]) or 'a placed_model without its plan.json'}"],
            help="give another one: -o DIR",
        )
    return directory


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


def _pins(texts: Sequence[str]) -> dict[str, str]:
    pins: dict[str, str] = {}
    for text in texts:
        pattern, equals, device = text.rpartition("=")
        if not equals or not pattern or not device:
            raise UsageError(f"--pin {text!r}: expected REGEX=DEVICE", help="e.g. --pin 'conv.*=GPU:0'")
        pins[pattern] = device
    return pins


def _verification_error(plan: Plan) -> VerificationError:
    found = plan.verification
    assert found is not None
    return VerificationError(
        "the placed model failed its verification; it was not written",
        notes=[
            f"misplaced ops: {len(found.misplaced_ops)}",
            f"relative differences: outputs {found.outputs_max_rel_diff:.1e}, gradients "
            f"{found.gradients_max_rel_diff:.1e}, weights after {found.num_steps} steps {found.weights_max_rel_diff:.1e}; "
            f"tolerance {found.tolerance:.0e}, unplaced model reordered {found.control_max_rel_diff:.1e}",
            *found.misplaced_ops[:5],
        ],
        help="plan.json has the details; please report it with the model",
    )


class _Progress:
    """One line on stderr that says what is being done, overwritten on a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._is_terminal = sys.stderr.isatty()
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        if self._enabled:
            line = f"[{time.monotonic() - self._start:5.1f} s] {text} ..."
            print(f"\r\033[K{line}" if self._is_terminal else line, end="" if self._is_terminal else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip

    def done(self) -> None:
        """Clear the line."""
        if self._enabled and self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _quiet_library_logs(options: argparse.Namespace) -> Iterator[None]:
    """Hide Python warnings of the libraries unless asked for."""
    import warnings

    with warnings.catch_warnings():
        if not options.verbose:
            warnings.simplefilter("ignore")
        yield
