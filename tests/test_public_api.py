"""What users and scripts rely on: names, signatures, docstrings, an option for each argument of `plan`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

import cost_models
import partitioner
from partitioner import api, errors, plan_view
from partitioner.cli import main
from partitioner.cli.commands import compile
from partitioner.cli.parser import Parser

GOLDEN = Path(__file__).parent / "golden"
FUNCTIONS = ("auto_place", "bench", "explain", "load", "measure_step", "place", "plan", "set_up_devices", "verify")
CALLBACKS = ("StepReport", "TensorBoardReport")
OPTIONS = ("AsyncUpdates", "Constraints", "Parallelism", "Step")
EXIT_CODES = {
    "UsageError": 2,
    "ModelError": 3,
    "InfeasibleError": 4,
    "TimeLimitError": 5,
    "VerificationError": 6,
    "CheckError": 7,
    "WriteError": 8,
}
MOST_ARGUMENTS = 20
# Arguments whose option has another name, or that have none, and why.
OTHER_NAMES = {"pins": "pin"}
NO_OPTION = {
    "model": "the MODEL argument",
    "source": "the MODEL argument as it was typed",
    "example_inputs": "arrays do not fit on a command line: the file's variable of that name",
    "example_targets": "likewise",
    "step": "its fields have options",
    "parallelism": "likewise",
    "constraints": "likewise",
    "on_progress": "a bar on the terminal",
}


def test_the_public_names() -> None:
    assert partitioner.__all__ == sorted(
        [
            *FUNCTIONS,
            *OPTIONS,
            *EXIT_CODES,
            "Plan",
            "PartitionError",
            *CALLBACKS,
        ]
    )
    assert all(getattr(partitioner, name) for name in partitioner.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        partitioner.plam  # noqa: B018


def test_the_installed_command_and_version() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="partition")
    assert script.load() is main
    assert metadata.version("partition") == partitioner.__version__


def test_signatures() -> None:
    """Change them only by adding; then change the golden file with them."""
    told = [_written(name, inspect.signature(getattr(partitioner, name))) for name in FUNCTIONS]
    methods = (
        "explain", "from_json", "load", "retargeted", "save", "save_costs", "to_dot", "to_html", "to_json", "to_png",
        "to_svg", "to_text", "to_timeline", "within",
    )  # fmt: skip
    told += [_written(name, inspect.signature(getattr(partitioner, name))) for name in OPTIONS]
    told += [_written(name, inspect.signature(getattr(partitioner, name))) for name in CALLBACKS]
    told += [_written(f"Plan.{name}", inspect.signature(getattr(partitioner.Plan, name))) for name in methods]
    assert "\n".join(told) + "\n" == (GOLDEN / "public_api.txt").read_text(encoding="utf-8")


def test_each_error_has_the_exit_code_of_the_contract() -> None:
    assert {name: getattr(partitioner, name).exit_code for name in EXIT_CODES} == EXIT_CODES
    assert all(issubclass(getattr(partitioner, name), partitioner.PartitionError) for name in EXIT_CODES)


def test_plan_takes_few_arguments_and_no_option_value_holds_one_of_them() -> None:
    arguments = set(inspect.signature(partitioner.plan).parameters)
    assert len(arguments) <= MOST_ARGUMENTS
    for name in OPTIONS:
        held = {field.name for field in fields(getattr(partitioner, name))}
        assert not held & arguments, name


def test_an_error_reads_offender_place_numbers_help() -> None:
    error = partitioner.ModelError("no model", where="a.py:1 (f)", notes=["2 GiB", "3 GiB"], help="try b.py")
    assert str(error) == "no model\n  --> a.py:1 (f)\n   |  2 GiB\n   |  3 GiB\n   help: try b.py"
    assert str(partitioner.UsageError("wrong")) == "wrong"


def test_everything_public_has_a_docstring() -> None:
    modules = [api, plan_view, errors, cost_models]
    modules += [
        importlib.import_module(f"cost_models.{found.name}") for found in pkgutil.iter_modules(cost_models.__path__)
    ]
    silent = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, thing in [("", module), *_defined(module)]
        if not (thing.__doc__ or "").strip() or _is_made_by_dataclass(thing)
    ]
    assert not silent


def test_each_argument_has_an_option_of_the_same_meaning_and_default() -> None:
    parser = Parser(prog="partition")
    compile.add_arguments(parser)
    options = vars(parser.read(["model.py", "--devices", "CPU:0"]))
    arguments = {name: known.default for name, known in inspect.signature(partitioner.plan).parameters.items()}
    for holder in (partitioner.Step, partitioner.Parallelism, partitioner.Constraints):
        arguments |= {name: known.default for name, known in inspect.signature(holder).parameters.items()}
    assert set(NO_OPTION) <= set(arguments)
    for name, default in arguments.items():
        if name in NO_OPTION:
            continue
        option = OTHER_NAMES.get(name, name)
        assert option in options, f"{name} has no option"
        if isinstance(default, (bool, int, float, str)):
            assert options[option] == default, name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"schedule": "gpipe"}, r"parallelism=Parallelism\(schedule=...\)"),
        ({"pins": {"a": "CPU:0"}}, r"constraints=Constraints\(pins=...\)"),
        ({"training": False}, r"step=Step\(training=...\)"),
        ({"max_staleness": 3}, r"updates=AsyncUpdates\(max_staleness=...\)"),
        ({"source": "model.py"}, r"step=Step\(source=...\)"),
    ],
)
def test_an_argument_that_went_names_the_new_way(old: dict[str, object], new: str) -> None:
    with pytest.raises(partitioner.UsageError, match=new):
        partitioner.plan(None, "CPU:0", **old)


def _written(name: str, signature: inspect.Signature) -> str:
    """One parameter per line, so that a change shows as one line."""
    unquoted = [re.sub(r": '([^']*)'", r": \1", str(p)) for p in signature.parameters.values()]
    lines = [re.sub(r"<function (\w+) at \w+>", r"\1", f"    {parameter},") for parameter in unquoted]
    keyword_only = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values()]
    if True in keyword_only:
        lines.insert(keyword_only.index(True), "    *,")
    return "\n".join([f"{name}(", *lines, f") -> {signature.return_annotation}"])


def _defined(module: object) -> list[tuple[str, object]]:
    """The public functions and classes of a module, and the public methods of those classes."""
    name_of = getattr(module, "__name__", "")
    own: list[tuple[str, object]] = [
        (name, thing)
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__ == name_of
    ]
    methods: list[tuple[str, object]] = [
        (f"{name}.{method}", thing)
        for name, cls in own
        if inspect.isclass(cls)
        for method, thing in vars(cls).items()
        if not method.startswith("_") and inspect.isfunction(thing)
    ]
    return own + methods


def _is_made_by_dataclass(thing: object) -> bool:
    """A dataclass without a docstring gets its signature as one."""
    return inspect.isclass(thing) and (thing.__doc__ or "").startswith(f"{thing.__name__}(")
