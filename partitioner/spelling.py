"""Spell arguments in messages: as in Python, or as a flag of the command line; and lists of names.

No pass knows its caller. It writes `argument("microbatches", 1)`, and the code that shows the message spells it. Texts
in a plan are read by everybody, so they name no argument at all: "8 microbatches", "the strategy mirrored".
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MARKED = re.compile(r"⟪(\w+)(?:=(.*?))?⟫(?=(⟪)?)", re.DOTALL)
_HOLDER = {
    **dict.fromkeys(
        ("training", "loss", "optimizer", "input_shape", "example_inputs", "example_targets", "jit_compile"), "Step"
    ),
    **dict.fromkeys(("schedule", "recompute", "updates"), "Parallelism"),
    **dict.fromkeys(("pins", "forbid", "colocate"), "Constraints"),
}
"""The option value that holds an argument, where it is not a keyword of `plan`."""
_BY_PATTERN = ("pins", "forbid")
_FLAGS = {"pins": "pin"}
_MAX_NAMED = 5


def argument(name: str, value: Any = None) -> str:
    """An argument of `plan` within a message, marked to be spelled by `as_python` or `as_flags`.

    Args:
        name: As in Python: `memory_limit`. Requirements are `argument("pins", "encoder=GPU:0")`.
        value: A number, a text, a list of texts, or sizes by input name; None for the name alone.
    """
    return f"⟪{name}⟫" if value is None else f"⟪{name}={value!r}⟫"


def arguments(**values: Any) -> str:
    """Several arguments to be given together: `strategy="mixed", replicas=2` or `--strategy mixed --replicas 2`."""
    return "".join(argument(name, value) for name, value in values.items())


def command(program: str, **options: Any) -> str:
    """A line for the shell in any message: `command("partition MODEL", costs="measured")`."""
    return " ".join([program, *(_as_flag(name, value) for name, value in options.items())])


def python_call(function: str, *first: str, **options: Any) -> str:
    """A call in Python with arguments of `plan`: `plan(model, batch_size=64, step=Step(optimizer='sgd'))`."""
    held: dict[str, list[str]] = {}
    staleness = options.pop("max_staleness", None)
    for name, value in options.items():
        said = repr(value)
        if name == "updates" and value == "async":
            said = "AsyncUpdates()" if staleness is None else f"AsyncUpdates(max_staleness={staleness})"
        held.setdefault(_HOLDER.get(name, ""), []).append(f"{name}={said}")
    given = [*first, *held.pop("", ())]
    given += [f"{holder.lower()}={holder}({', '.join(inner)})" for holder, inner in held.items()]
    return f"{function}({', '.join(given)})"


def as_python(text: str) -> str:
    """The text with its arguments as `partitioner.plan` takes them: `step=Step(optimizer='sgd')`."""
    return _spelled(text, _in_python, separator=", ")


def as_flags(text: str) -> str:
    """The text with its arguments as the command line takes them: `--optimizer sgd`."""
    return _spelled(text, _as_flag, separator=" ")


def in_words(text: str) -> str:
    """The text with its arguments in plain words, to be kept in a plan: `optimizer sgd`."""
    return _spelled(text, _in_words, separator=", ")


def _spelled(text: str, spell: Callable[[str, Any], str], *, separator: str) -> str:
    def spelled(match: re.Match[str]) -> str:
        value = None if match[2] is None else ast.literal_eval(match[2])
        return spell(match[1], value) + (separator if match[3] else "")

    return _MARKED.sub(spelled, text)


def _in_python(name: str, value: Any) -> str:
    holder = _HOLDER.get(name)
    if value is None:
        return f"{holder}.{name}" if holder else name
    if name == "updates" and value == "async":
        inner = "updates=AsyncUpdates()"
    elif name == "max_staleness":
        inner, holder = f"updates=AsyncUpdates(max_staleness={value})", "Parallelism"
    elif name in _BY_PATTERN:
        pattern, _, devices = value.rpartition("=")
        inner = f"{name}={ {pattern: devices}!r}"
    elif name == "colocate":
        inner = f"colocate={[value]!r}"
    else:
        inner = f"{name}={value!r}"
    return f"{holder.lower()}={holder}({inner})" if holder else inner


def _as_flag(name: str, value: Any) -> str:
    if name == "training" and value is not None:
        return "--training" if value else "--inference"
    if name == "jit_compile" and isinstance(value, bool):
        value = "on" if value else "off"
    flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
    if value is None or value is True:
        return flag
    if isinstance(value, Mapping):
        pairs = (f"{key}={_listed(item)}" if key else _listed(item) for key, item in value.items())
        return " ".join(f"{flag} {shlex.quote(pair)}" for pair in pairs)
    if name == "colocate" and isinstance(value, list):
        return " ".join(f"{flag} {shlex.quote(pattern)}" for pattern in value)
    return f"{flag} {shlex.quote(_listed(value))}"


def _in_words(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    return words if value is None else f"{words} {_listed(value)}"


def _listed(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_listed, value))
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of further names: `a, b, c, d, e and 48 more`."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
