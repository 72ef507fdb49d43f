"""Arguments within messages, as Python and as the command line spell them."""

from __future__ import annotations

import pytest

from partitioner.errors import UsageError
from partitioner.spelling import argument, as_flags, as_python


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
        ("memory_limit", None, "memory_limit", "--memory-limit"),
        ("recompute", None, "Parallelism.recompute", "--recompute"),
    ],
)
def test_an_argument_in_both_spellings(name: str, value: object, python: str, flags: str) -> None:
    text = f"try {argument(name, value)}, or fewer devices"
    assert as_python(text) == f"try {python}, or fewer devices"
    assert as_flags(text) == f"try {flags}, or fewer devices"


def test_an_error_speaks_python_unless_the_command_line_shows_it() -> None:
    error = UsageError("no", notes=[argument("seed")], help=argument("seed", 3))
    assert str(error) == "no\n   |  seed\n   help: seed=3"
    assert error.for_command_line() == "no\n   |  --seed\n   help: --seed 3"
