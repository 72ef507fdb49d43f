"""Arguments within messages, as Python and as the command line spell them."""

from __future__ import annotations

import pytest

from partitioner.errors import UsageError
from partitioner.spelling import argument, arguments, as_flags, as_python, command, in_words


@pytest.mark.parametrize(
    ("name", "value", "python", "flags"),
    [
        ("microbatches", 1, "microbatches=1", "--microbatches 1"),
        ("devices", ["GPU:0", "GPU:1"], "devices=['GPU:0', 'GPU:1']", "--devices GPU:0,GPU:1"),
        ("optimizer", "sgd", "step=Step(optimizer='sgd')", "--optimizer sgd"),
        ("training", False, "step=Step(training=False)", "--inference"),
        ("updates", "async", "parallelism=Parallelism(updates=AsyncUpdates())", "--updates async"),
        ("max_staleness", 4, "parallelism=Parallelism(updates=AsyncUpdates(max_staleness=4))", "--max-staleness 4"),
        ("pins", "conv.*=GPU:0", "constraints=Constraints(pins={'conv.*': 'GPU:0'})", "--pin 'conv.*=GPU:0'"),
        ("colocate", "a|b", "constraints=Constraints(colocate=['a|b'])", "--colocate 'a|b'"),
        ("input_shape", (28, 28, 1), "step=Step(input_shape=(28, 28, 1))", "--input-shape 28,28,1"),
        (
            "input_shape",
            {"left": (12,), "right": (3, 4)},
            "step=Step(input_shape={'left': (12,), 'right': (3, 4)})",
            "--input-shape left=12 --input-shape right=3,4",
        ),
        ("memory_limit", None, "memory_limit", "--memory-limit"),
        ("recompute", None, "Parallelism.recompute", "--recompute"),
    ],
)
def test_an_argument_in_both_spellings(name: str, value: object, python: str, flags: str) -> None:
    text = f"try {argument(name, value)}, or fewer devices"
    assert as_python(text) == f"try {python}, or fewer devices"
    assert as_flags(text) == f"try {flags}, or fewer devices"


def test_arguments_to_be_given_together() -> None:
    text = f"{arguments(strategy='mixed', replicas=2)}, or {argument('strategy', 'auto')}"
    assert as_python(text) == "strategy='mixed', replicas=2, or strategy='auto'"
    assert as_flags(text) == "--strategy mixed --replicas 2, or --strategy auto"


def test_words_that_a_plan_keeps() -> None:
    assert in_words(f"no {argument('memory_limit')}, {argument('devices', ['GPU:0', 'GPU:1'])}") == (
        "no memory limit, devices GPU:0,GPU:1"
    )


def test_a_command_is_the_same_for_everybody() -> None:
    line = command("partition MODEL", costs="measured", json=True)
    assert as_python(line) == as_flags(line) == "partition MODEL --costs measured --json"


def test_an_error_speaks_python_unless_the_command_line_shows_it() -> None:
    error = UsageError("no", notes=[argument("seed")], help=argument("seed", 3))
    assert str(error) == "no\n   |  seed\n   help: seed=3"
    assert error.for_command_line() == "no\n   |  --seed\n   help: --seed 3"


def test_what_else_works_is_added_to_an_error() -> None:
    error = UsageError("no", help=argument("seed", 3)).also(notes=["two of"], help=argument("devices", ["GPU:0"]))
    assert error.for_command_line() == "no\n   |  two of\n   help: --seed 3, or --devices GPU:0"
    assert error.args == (str(error),)
    assert UsageError("no").also(help="less").help == "less"
