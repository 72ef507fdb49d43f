"""Which of many models are planned, placed and verified: in training and inference, in one piece and in microbatches.

`python -m tests.benchmarks.coverage --results coverage.jsonl` runs each row in a process of its own, so that a crash
or a timeout costs only that row, and writes it down; run again, it goes on where it was cut off. The table shows all
rows written down. Differences are relative, between the placed and the unplaced model; beside them stands the largest
of a control, which is the unplaced model with other rounding.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

TIMEOUT = 300.0
TIME_LIMIT = 10.0
ROOMS = ("partitioner", "cost_models")
# So begin the notes of a plan whose numbers are those of a reference cut alike, not those of the whole batch.
CAVEAT = "unlike with the whole batch"


@dataclass(frozen=True, order=True)
class Case:
    """A model, how it runs, and in how many microbatches."""

    model: str
    mode: str
    microbatches: int

    @property
    def text(self) -> str:
        """What `--only` is searched in."""
        return f"{self.model} {self.mode} {self.microbatches}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a case.

    Attributes:
        model: Of the case, as `mode` and `microbatches`.
        outcome: `pass`, `refused`, `skipped` or `FAILED`.
        why: The line of the error that says most; of a pass, where its numbers are not those of the whole batch.
        frames: The innermost frames of the error in our packages, the last first.
        ops: Ops of the planned graph.
        seconds: All of it, from building the model on.
        uncosted: Op types without a formula, with their counts and shares.
        misplaced: Ops that ran elsewhere than planned.
        difference: The largest relative difference of outputs, gradients and weights.
        explained: The largest of the control.
        notes: What the plan and the verification say besides.
    """

    model: str
    mode: str
    microbatches: int
    outcome: str
    why: str = ""
    frames: tuple[str, ...] = ()
    ops: int = 0
    seconds: float = 0.0
    uncosted: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()
    difference: float | None = None
    explained: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        """The case it is of."""
        return Case(self.model, self.mode, self.microbatches)


def cases() -> Iterator[Case]:
    """All rows of the benchmark: every model once, before any is in microbatches."""
    from tests.benchmarks.coverage_models import MODELS
    from tests.benchmarks.coverage_models.registry import MODES

    for microbatches in (1, 2):
        for mode in MODES:
            yield from (Case(name, mode, microbatches) for name, entry in MODELS.items() if mode in entry.modes)


def run_here(case: Case) -> Row:
    """Plan, place and verify a model in this process."""
    from partitioner.errors import PartitionError, VerificationError
    from tests.benchmarks.coverage_models import NotInstalledError

    found: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        outcome, why = _verified(case, found)
        frames: tuple[str, ...] = ()
    except NotInstalledError as error:
        outcome, why, frames = "skipped", f"not installed: {error}", ()
    except PartitionError as error:
        outcome = "FAILED" if isinstance(error, VerificationError) else "refused"
        why, frames = f"{type(error).__name__}: {error.message}", _our_frames(error)
        found["notes"] = error.notes
    except Exception as error:
        outcome, why, frames = "FAILED", f"{type(error).__name__}: {_said(error)}", _our_frames(error)
        found["notes"] = tuple(str(error).strip().splitlines()[-8:])
    return Row(**asdict(case), outcome=outcome, why=why, frames=frames, seconds=time.perf_counter() - start, **found)


def _verified(case: Case, found: dict[str, Any]) -> tuple[str, str]:
    """Plan, place and verify; what is found is put down as soon as it is known."""
    import keras

    import partitioner
    from tests.benchmarks.coverage_models import MODELS

    entry = MODELS[case.model]
    devices = [f"CPU:{index}" for index in range(entry.num_devices)]
    partitioner.set_up_devices(devices)
    keras.utils.set_random_seed(0)
    built = entry.built()
    step = partitioner.Step(
        training=case.mode == "training",
        input_shape=built.input_shape,
        example_inputs=built.inputs,
        example_targets=built.targets,
    )
    plan = partitioner.plan(
        built.model,
        devices,
        batch_size=entry.batch_size,
        strategy="layer-split",
        microbatches=case.microbatches,
        time_limit=TIME_LIMIT,
        step=step,
    )
    found |= {"ops": plan.model.num_ops, "uncosted": plan.uncosted_ops, "notes": plan.notes}
    placed = partitioner.place(built.model, plan)
    verification = partitioner.verify(built.model, placed)
    differences = {
        "outputs": verification.outputs_max_rel_diff,
        "gradients": verification.gradients_max_rel_diff,
        "weights": verification.weights_max_rel_diff,
    }
    found |= {
        "misplaced": verification.misplaced_ops,
        "difference": max(differences.values()),
        "explained": verification.control_max_rel_diff,
        "notes": tuple(filter(None, (*plan.notes, verification.note))),
    }
    if verification.passed:
        return "pass", "; ".join(note for note in plan.notes if note.startswith(CAVEAT))
    if verification.misplaced_ops:
        return "FAILED", f"misplaced: {verification.misplaced_ops[0]}"
    apart = ", ".join(f"{what} {size:.1e}" for what, size in differences.items())
    return "FAILED", f"differs: {apart}; control {verification.control_max_rel_diff:.1e}"


def _said(error: BaseException) -> str:
    """The line of an error that says most: TensorFlow puts its reason last, and after it where in the graph."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("[[") and not line.endswith("]")]
    if not said:
        return ""
    return said[-1] if said[0].endswith("error:") else said[0]


def _our_frames(error: BaseException) -> tuple[str, ...]:
    """The innermost frames of an error, and of its first cause, in our packages."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if any(f"{os.sep}{room}{os.sep}" in frame.filename for room in ROOMS)]
    return tuple(f"{Path(*_from_room(frame.filename))}:{frame.lineno} {frame.name}" for frame in reversed(ours[-4:]))


def _from_room(path: str) -> tuple[str, ...]:
    parts = Path(path).parts
    start = max(index for index, part in enumerate(parts) if part in ROOMS)
    return parts[start:]


def _run_alone(case: Case, timeout: float) -> Row:
    """Run a case in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--case", *map(str, asdict(case).values())]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=quiet, check=False)
    except subprocess.TimeoutExpired:
        why = f"took longer than {timeout:.0f} s"
    else:
        if ended.returncode == 0:
            return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Row)
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        why = f"the process ended with {ended.returncode}: {last}"
    return Row(**asdict(case), outcome="FAILED", why=why, seconds=time.perf_counter() - start)


def _read(results: Path) -> dict[Case, Row]:
    """The rows written down; of a case that was run twice, the later."""
    if not results.exists():
        return {}
    lines = results.read_text(encoding="utf-8").splitlines()
    rows = [msgspec.json.decode(line, type=Row) for line in lines if line.strip()]
    return {row.case: row for row in rows}


def table(rows: Mapping[Case, Row]) -> Table:
    """The rows, a line each."""
    columns = ("model", "mode", "ops", "seconds", "uncosted", "misplaced", "difference", "explained", "outcome")
    counts = Counter(row.outcome for row in rows.values())
    shown = Table(title=", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    for column in columns:
        is_text = column in ("model", "mode", "uncosted", "outcome")
        shown.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for case, row in sorted(rows.items()):
        pieces = f", {case.microbatches} parts" if case.microbatches > 1 else ""
        shown.add_row(
            case.model,
            case.mode + pieces,
            f"{row.ops or ''}",
            f"{row.seconds:.0f}",
            ", ".join(row.uncosted),
            f"{len(row.misplaced) or ''}",
            *("" if size is None else f"{size:.1e}" for size in (row.difference, row.explained)),
            row.outcome + (f": {row.why}" if row.why else ""),
        )
    return shown


def main() -> None:
    """Run the rows that are not yet written down, and print the table of all that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs=3, metavar=("MODEL", "MODE", "MICROBATCHES"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", metavar="REGEX", help="rows such as `hub/bert training 2` to run")
    parser.add_argument("--results", type=Path, default=Path("coverage.jsonl"), metavar="FILE")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help="for a row")
    options = parser.parse_args()
    if options.case:
        model, mode, microbatches = options.case
        print(msgspec.json.encode(run_here(Case(model, mode, int(microbatches)))).decode())
        return
    rows = _read(options.results)
    asked = [case for case in cases() if re.search(options.only, case.text)]
    for case in track([case for case in asked if case not in rows], "rows", console=Console(stderr=True)):
        rows[case] = _run_alone(case, options.timeout)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(msgspec.json.encode(rows[case]).decode() + "\n")
    Console(width=200).print(table({case: rows[case] for case in asked}))


if __name__ == "__main__":
    main()
