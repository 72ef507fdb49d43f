"""Valid documents and command lines, changed at random: what comes of each is a result or an error for its reader.

Most changes are of structure (a value, a key, an element, a type), so that what is wrong is found behind the parser.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shlex
import signal
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from graphs import training_chain

from partitioner.cli import main
from partitioner.cli.commands import compile as main_command
from partitioner.cli.files import load_plan
from partitioner.cli.given_plan import given_plan
from partitioner.cli.parser import Parser
from partitioner.cli.request import request_of
from partitioner.cost_graphs.read import read_cost_graph
from partitioner.errors import PartitionError
from partitioner.hardware.topology_file import read_topology
from partitioner.planner.simulate.unpipelined import simulate
from tests.commands import GOLDEN, SMALL

MOST_SECONDS = 10

EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.0, 1e-320, 1e-9, 1e18, 1e308, -1e308),
    *(
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        None,
        "",
        " ",
        "0",
        "-1",
        "nan",
        "x" * 5000,
        "é\u202e\U0001f600",
        "\x00",
    ),
    *("GPU:0", "CPU:99", "GPU:0-3", "/job:localhost/replica:0/task:0/device:GPU:7", "a100-80gb", "optimal", "sync"),
    *([], {}, [[]], [None], {"": None}, [1, "a", {}]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case.

    Attributes:
        text: The case.
        parsed: Whether its syntax was right.
        accepted: Whether it had a result.
        failure: What was wrong with how it ended: a traceback, a hang, a file left; empty if nothing was.
    """

    text: str
    parsed: bool = True
    accepted: bool = False
    failure: str = ""


class HangError(BaseException):
    """A case took longer than it may; nothing that catches exceptions catches it."""


# Changes


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a JSON value, from the top."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def changed(document: Any, random: Random) -> Any:
    """A copy with one to three values changed, dropped, repeated, moved, nested or of another type."""
    document = deepcopy(document)
    for _ in range(random.choice((1, 1, 1, 1, 2))):
        # The top level's keys are few: take one, then a path within it, so that long lists do not take all.
        keys = list(document) if isinstance(document, dict) else []
        if not keys:
            return document
        top = random.choice(keys)
        path = random.choice([(top, *rest) for rest in paths(document[top])])
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        (_vary if random.random() < 0.85 else _change)(parent, path[-1], document, random)
    return document


def _vary(parent: Any, key: Any, document: Any, random: Random) -> None:
    """Another value of the same type, so that only its meaning may be wrong."""
    value = parent[key]
    beside = list(parent.values() if isinstance(parent, dict) else parent)
    same_key = [_at(document, path) for path in paths(document) if path[-1:] == (key,)]
    alike = [item for item in (*beside, *same_key) if type(item) is type(value)]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = random.choice([0, 1, -1, value + 1, -value, value * 1000, 2**40, 2**62, random.choice(alike)])
    elif isinstance(value, float):
        parent[key] = random.choice([0.0, -value, value * 1e12, value / 1e12, 1e308, 5e-324, random.choice(alike)])
    elif isinstance(value, str):
        parent[key] = random.choice(["", "x" * 300, "é\u202e\U0001f600\n", *random.choices(alike, k=9)])
    elif isinstance(value, list) and value:
        at = random.randrange(len(value))
        match random.randrange(4):
            case 0:
                value.pop(at)
            case 1:
                value.insert(at, deepcopy(value[at]))
            case 2:
                random.shuffle(value)
            case _:
                value.clear()
    elif isinstance(value, dict) and value:
        name = random.choice(list(value))
        value[random.choice(list(value))] = deepcopy(value[name])


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _change(parent: Any, key: Any, document: Any, random: Random) -> None:
    value = parent[key]
    match random.randrange(9):
        case 0:
            parent.pop(key)
        case 1 if isinstance(parent, list):
            parent.insert(key, deepcopy(value))
        case 1:
            parent[f"{key}s"] = parent.pop(key)
        case 2:
            parent[key] = deepcopy(random.choice(EXTREMES))
        case 3 if isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = random.choice([-value, value * 1e12, value + 1, str(value), value / 1e12, not value])
        case 3 if isinstance(value, str):
            parent[key] = random.choice([value[: len(value) // 2], value + value, value.upper(), f"{value}\n", [value]])
        case 4:
            for _ in range(random.choice((1, 2, 40))):
                value = random.choice(([value], {"a": value}))
            parent[key] = value
        case 5:  # a value from elsewhere in the document
            parent[key] = deepcopy(_at(document, random.choice(list(paths(document)))))
        case 6 if isinstance(value, list):
            random.shuffle(value)
        case 6 if isinstance(value, dict):
            keys, items = list(value), list(value.values())
            random.shuffle(items)
            parent[key] = dict(zip(keys, items, strict=True))
        case 7 if isinstance(value, list | dict):
            parent[key] = type(value)()
        case _:
            parent[key] = deepcopy(random.choice(EXTREMES[:20]))


def garbled(text: str, random: Random) -> str:
    """A text cut off, with characters replaced, a piece repeated, or nested deeply."""
    at, to = sorted(random.randrange(len(text) + 1) for _ in range(2))
    match random.randrange(6):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + random.choice('"{}[],:=\x00é\U0001f600 9-#') + text[at + 1 :]
        case 2:
            return text[:to] + text[at:to][:2000] + text[to:]
        case 3:
            return text[:at] + random.choice("[{") * 100_000 + text[at:]
        case 4:
            return text[:at] + text[to:]
        case _:
            return "\ufeff" + text


def as_json(value: Any, random: Random) -> str:
    """The JSON of a value, sometimes with a key twice."""
    text = json.dumps(value, indent=1)
    if random.randrange(10) == 0:
        lines = text.splitlines()
        at = random.randrange(1, len(lines))
        if '": ' in lines[at] and lines[at].endswith(","):
            lines.insert(at, lines[at])
        text = "\n".join(lines)
    return text


def as_toml(value: dict[str, Any]) -> str:
    """The TOML of a table, a line for each key."""
    return "".join(f"{_toml_key(key)} = {_in_toml(item)}\n" for key, item in value.items())


def _in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_in_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps("" if value is None else value).replace("\\u0000", "\\u0001")


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))


# Formats


def a_plan(random: Random, folder: Path) -> Outcome:
    """A plan of a model or of a cost graph, shown, compared, explained, checked or placed."""
    source = random.choice([*[GOLDEN / "cli_plan.json"] * 5, OLD_PLAN])
    text = as_json(changed(json.loads(source.read_text(encoding="utf-8")), random), random)
    text = garbled(text, random) if random.randrange(12) == 0 else text
    (folder / "plan.json").write_text(text, encoding="utf-8")
    (folder / "other.json").write_bytes((GOLDEN / "cli_plan.json").read_bytes())
    line = random.choice(
        [
            "show plan.json", "show plan.json --verbose", "show plan.json --json", "show plan.json --html a.html",
            "show plan.json --timeline a.json", "show plan.json --dot a.dot --level op",
            "show plan.json --dot a.dot --level stage", "show plan.json --dot a.dot --level layer --stage 0",
            "explain plan.json --no-moves", "diff plan.json other.json",
            "diff other.json plan.json --fail-if-slower 5% --json", "check plan.json",
            "small.py --plan plan.json", "small.py --plan plan.json --retarget CPU:0-1=GPU:0-1",
            "small.py --plan plan.json --memory-limit 1GiB",
        ]
    )  # fmt: skip
    outcome = ran(shlex.split(line), folder)
    return replace(outcome, text=f"partition {line}\n{text}", parsed=_is_read(lambda: load_plan("plan.json", "show")))


def a_topology(random: Random, folder: Path) -> Outcome:
    """A topology file whose devices and links have names."""
    return _topology(deepcopy(TOPOLOGY), random, folder)


def a_hardware(random: Random, folder: Path) -> Outcome:
    """A topology file with hardware and links of its own."""
    table = deepcopy(TOPOLOGY) | {"link": deepcopy(OWN_LINK)}
    table["devices"][0]["hardware"] = deepcopy(OWN_DEVICE)
    del table["devices"][0]["memory"]
    return _topology(table, random, folder)


def _topology(table: dict[str, Any], random: Random, folder: Path) -> Outcome:
    text = as_toml(changed(table, random))
    text = garbled(text, random) if random.randrange(12) == 0 else text
    (folder / "machines.toml").write_text(text, encoding="utf-8")

    def read() -> None:
        machines = read_topology(Path("machines.toml"))
        made = training_chain(2, parameter_bytes=1024, slot_bytes=512, saved_bytes=256).costed(machines)
        last = len(machines.devices) - 1
        simulate(made, {op.name: index % 2 * last for index, op in enumerate(made.graph.ops)})

    return replace(guarded(read, folder), text=text, parsed=_is_read(lambda: tomllib.loads(text)))


def a_graph(random: Random, folder: Path) -> Outcome:
    """A workload or a profile, planned with little time."""
    if random.randrange(5):
        name, vary = "work.json", random.choice((changed, _with_other_costs, _with_other_costs))
        text = as_json(vary(WORKLOAD, random), random)
    else:
        name, text = "graph.txt", _changed_profile(random)
    text = garbled(text, random) if random.randrange(12) == 0 else text
    (folder / name).write_text(text, encoding="utf-8")
    options = random.choice(["--devices GPU:0-1,CPU:0", "", "--contiguous", "--memory-limit 1MB", "--pin 1=GPU:0"])
    outcome = ran(["graph", name, "--time-limit", "1", "-q", *shlex.split(options)], folder)
    return replace(
        outcome, text=f"partition graph {name} {options}\n{text}", parsed=_is_read(lambda: read_cost_graph(name))
    )


def _with_other_costs(workload: dict[str, Any], random: Random) -> dict[str, Any]:
    """A copy with other times and sizes, far from each other, and other limits: most are sound."""
    workload = deepcopy(workload)
    for row in random.choices([*workload["nodes"], *workload["edges"]], k=4):
        key = random.choice([key for key, value in row.items() if isinstance(value, float)])
        row[key] = random.choice([0.0, 1e-12, 1e15, row[key] * 1e6, row[key] / 1e6, row[key] * random.random()])
    if random.randrange(3) == 0:
        workload["maxSizePerFPGA"] = random.choice([0.0, 1e-9, 10.0, 20.0, 1e18])
    return workload


def _changed_profile(random: Random) -> str:
    lines = PROFILE.splitlines()
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(lines))
        words = lines[at].split(" ")
        match random.randrange(5):
            case 0:
                lines.insert(random.randrange(len(lines)), lines[at])
            case 1:
                lines.pop(at)
            case 2:
                words[random.randrange(len(words))] = str(random.choice(EXTREMES))
                lines[at] = " ".join(words)
            case 3:
                digits = [index for index, char in enumerate(lines[at]) if char.isdigit()]
                if digits:
                    cut = random.choice(digits)
                    lines[at] = (
                        lines[at][:cut]
                        + random.choice(["-1", "1e308", "nan", "inf", "9" * 400, ""])
                        + lines[at][cut + 1 :]
                    )
            case _:
                random.shuffle(words)
                lines[at] = " ".join(words)
    return "\n".join(lines) + "\n"


def a_command_line(random: Random, folder: Path) -> Outcome:
    """A command line with words changed; the main command is read up to its values, and others run."""
    for name, source in {"small.py": Path(SMALL), "plan.json": GOLDEN / "cli_plan.json", "old.json": OLD_PLAN}.items():
        (folder / name).write_bytes(source.read_bytes())  # what a command line names may be written to
    words = shlex.split(random.choice(LINES))
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(words))
        match random.randrange(6):
            case 0:
                words.insert(random.randrange(len(words) + 1), words[at])
            case 1:
                words.pop(at)
            case 2:
                words[at] = random.choice([str(value) for value in EXTREMES] + VALUES)
            case 3:
                words[at] = garbled(words[at], random)[:3000]
            case 4:
                words.insert(at + 1, random.choice(shlex.split(random.choice(LINES))))
            case _:
                words[at] += random.choice(["=", ",", ":0", "-9", "0" * 30, "%", ".."])
        if not words:
            break
    words = [word.replace("\x00", "") for word in words]
    return replace(ran(words, folder), text=shlex.join(["partition", *words]))


FORMATS: dict[str, Callable[[Random, Path], Outcome]] = {
    "plan": a_plan,
    "topology": a_topology,
    "hardware": a_hardware,
    "graph": a_graph,
    "command-line": a_command_line,
}


def outcome_of(kind: str, seed: int) -> Outcome:
    """Make the case of a seed in an empty folder, run it there, and say what came of it."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            return FORMATS[kind](Random(seed), Path(name))
        finally:
            os.chdir(here)


# Running


def ran(words: list[str], folder: Path) -> Outcome:
    """Run a command line without TensorFlow: the main command ends when its options have become values."""
    first = words[0] if words else ""
    if first in ("verify", "bench", "doctor", "worker") or (first == "explain" and "--no-moves" not in words):
        return Outcome(text="")
    if first in ("show", "diff", "explain", "check", "graph", "hardware"):
        return guarded(lambda: main(words), folder)

    def read() -> None:
        parser = Parser(prog="partition", sub_commands=())
        main_command.add_arguments(parser)
        options = parser.read(words)
        given_plan(options) if options.plan else request_of(options)

    return guarded(read, folder)


def guarded(run: Callable[[], int | None], folder: Path) -> Outcome:
    """Run a case: neither a traceback, nor a hang, nor a file beside a failure."""
    before = set(folder.rglob("*"))

    def stop(*_: object) -> None:
        raise HangError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run() or 0
    except PartitionError as error:
        code = error.exit_code
        str(error), error.for_command_line()
    except OSError:  # `main` says what the system refused
        code = 2
    except SystemExit as stopped:  # the help
        code = int(stopped.code or 0)
    except HangError:
        return Outcome(text="", failure=f"took more than {MOST_SECONDS} s\n{traceback.format_exc()}")
    except BaseException:
        return Outcome(text="", failure=traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if code == 1 or code > 8:
        return Outcome(text="", failure=said.getvalue())
    if code not in (0, 7) and (left := set(folder.rglob("*")) - before):
        return Outcome(text="", failure=f"exit code {code}, and there are {sorted(map(str, left))}")
    return Outcome(text="", accepted=code in (0, 7))


def _is_read(read: Callable[[], object]) -> bool:
    try:
        read()
    except (PartitionError, ValueError, RecursionError):
        return False
    return True


# Valid cases

OLD_PLAN = Path(__file__).parent / "cost_graphs" / "plan_of_0_1_0.json"

TOPOLOGY: dict[str, Any] = {
    "link": "pcie4",
    "devices": [
        {"names": "GPU:0-3", "hardware": "a100-80gb", "memory": "70GiB"},
        {"names": ["/job:worker/task:0/GPU:0", "/job:worker/task:0/GPU:1"], "hardware": "t4"},
    ],
    "links": [
        {"among": "GPU:0-3", "link": "nvlink3"},
        {"between": ["GPU:0", "/job:worker/task:0/GPU:0-1"], "via": ["pcie4", "ethernet-100g"]},
        {"from": "GPU:1", "to": "GPU:2", "link": "pcie3"},
    ],
    "uplinks": [{"devices": "GPU:0-3", "link": "ethernet-100g", "name": "out"}],
}
OWN_DEVICE: dict[str, Any] = {
    "name": "mine",
    "memory_bytes": 16e9,
    "memory_bandwidth_bytes_per_second": 3e11,
    "launch_overhead_seconds": 5e-6,
    "peak_flops": {"float32": 8.1e12, "float16": 65e12},
}
OWN_LINK: dict[str, Any] = {"name": "wire", "latency_seconds": 25e-6, "bandwidth_bytes_per_second": 1.2e10}

WORKLOAD: dict[str, Any] = {
    "maxSizePerFPGA": 30.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": i, "name": f"op{i}", "cpuLatency": 30.0, "fpgaLatency": 3.0, "size": 10.0, "supportedOnFpga": i % 2,
            "isBackwardNode": i > 4, "colorClass": i % 3,
        }
        for i in range(1, 7)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 1.0, "size": 8.0} for i in range(1, 6)],
}  # fmt: skip

PROFILE = (
    "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=602112.000, "
    "parameter_size=0.000\n"
    + "".join(
        f"node{i} -- Conv2d({i}, 64) -- forward_compute_time={i}.5, backward_compute_time={2 * i}.25, "
        f"activation_size=[{i}000.0; 500.0], parameter_size={i}024.000\n"
        for i in range(2, 7)
    )
    + "".join(f"\tnode{i} -- node{i + 1}\n" for i in range(1, 6))
)

LINES = (
    "small.py --devices GPU:0,GPU:1 --batch-size 256 --hardware a100-80gb --link nvlink3 --memory-limit 8GiB",
    "small.py --devices GPU:0-3 --strategy mixed --replicas 2,1,1 --microbatches 4 --schedule 1f1b --recompute all",
    "small.py --topology '64x dgx-h100' --dry-run --strategy mirrored --updates async --max-staleness 8",
    "small.py --devices CPU:0,CPU:1 --pin 'enc.*=CPU:0' --forbid 'a=CPU:1,CPU:0' --colocate 'a|b' --seed 3",
    "small.py --devices CPU:0 --input-shape x=28,28,1 --inference --loss mae --optimizer sgd --time-limit 5 --what-if",
    "small.py --plan plan.json --retarget CPU:0=GPU:0,CPU:1=GPU:1 --devices GPU:0-1 --memory-limit 1GiB",
    "show plan.json --level stage --stage 1 --rankdir LR --dot a.dot --html a.html",
    "diff plan.json plan.json --fail-if-slower 5% --fail-if-memory 90% --json",
    "explain plan.json --no-moves --time-limit 3 --json",
    "check old.json --workload old.json",
    "hardware --json",
    "graph gone.json --devices GPU:0-3,CPU:0 --contiguous --work-limit 2 --memory-limit GPU:0=1MB --pin 'a=GPU:0'",
)
VALUES = [
    "GPU:0-99999999", "GPU:99999999999999999999", "CPU:3-1", "99999999x dgx-h100", "0x dgx-h100", "(", "a=b=c",
    "GPU:0=GPU:1", "1e400GiB", "8GiB,", "..GiB", "-1", "auto", "1,2,3,4,5,6,7,8", "9" * 5000, "٣", "²", "/", ".", "~",
    "/job:w/replica:1/task:2/GPU:0", "x=1,2=3", "--", "-", "--=", "--json=1", "GPU:٣", "4" * 20 + "x dgx-h100",
]  # fmt: skip
