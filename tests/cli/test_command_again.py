"""The command and the call that a plan gives to make it again: read again, they ask for the same."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

import partitioner
from partitioner.cli.commands import compile as main_command
from partitioner.cli.parser import Parser
from partitioner.cli.request import request_of
from partitioner.ir.plan import PlanDocument
from partitioner.options import Constraints, Machine, Parallelism, Request, Search, Step
from partitioner.report.command import command_of
from tests.commands import GOLDEN

PLAN = PlanDocument.load(GOLDEN / "cli_plan.json")
MODEL = "'my models.py:build(depth=2)'"


def read(line: str) -> Request:
    parser = Parser(prog="partition", sub_commands={})
    main_command.add_arguments(parser)
    return request_of(parser.read(shlex.split(line)[1:]))


def called(model: object, devices: object = None, **given: object) -> Request:
    """The request of a call of `plan`."""
    machine = {name: given.pop(name, None) for name in ("hardware", "link", "topology", "memory_limit")}
    search = {name: given.pop(name) for name in ("objective", "time_limit", "seed", "what_if") if name in given}
    return Request(machine=Machine(devices=devices, **machine), search=Search(**search), **given)


@pytest.mark.parametrize(
    "options",
    [
        "--devices GPU:0,GPU:1",
        "--devices CPU:0-1 --batch-size 256 --inference",
        "--topology 64x\\ dgx-h100 --devices GPU:0-511 --strategy mixed --replicas 64 --batch-size 64 --seed 7",
        "--devices GPU:0-3 --hardware t4 --link pcie3 --replicas 3,1 --strategy mixed --microbatches 4",
        "--devices GPU:0-1 --strategy mirrored --updates async --max-staleness 3 --batch-size 64",
        "--devices GPU:0-1 --pin 'enc.*=GPU:0' --pin head=GPU:1 --forbid 'a b=GPU:1' --colocate 'a|b' --colocate c",
        "--devices GPU:0-1 --memory-limit GPU:0=8GiB,GPU:1=4GiB --optimizer sgd --loss mean_absolute_error",
        "--devices GPU:0-1 --input-shape left=12 --input-shape right=3,4 --schedule 1f1b --recompute all --what-if",
        "--devices GPU:0 --input-shape 28,28,1 --objective memory",
    ],
)
def test_what_is_printed_asks_for_the_same(options: str) -> None:
    request = read(f"partition {MODEL} {options}")
    plan = replace(PLAN, request=request.given, model=replace(PLAN.model, source="my models.py:build(depth=2)"))
    command = command_of(plan)
    assert command.startswith(f"partition {MODEL} --")
    assert read(command).given == request.given
    call = command_of(replace(plan, model=replace(plan.model, source="")))
    names = {"Step": Step, "Parallelism": Parallelism, "Constraints": Constraints, "model": None,
             "AsyncUpdates": partitioner.AsyncUpdates, "called": called}  # fmt: skip
    assert eval(call.replace("partitioner.plan(", "called("), names).given == request.given


def test_nothing_that_was_left_out_is_in_it() -> None:
    request = read("partition model.py --devices GPU:0,GPU:1 --strategy auto --batch-size 32 --seed 0")
    assert request.given == {"devices": "GPU:0,GPU:1"}
    assert command_of(replace(PLAN, request={})) == ""


def test_a_value_that_json_cannot_say_is_named() -> None:
    step = Step(example_inputs=object(), source="")
    request = Request(machine=Machine(devices=["GPU:0"]), step=step)
    assert request.given == {"devices": ["GPU:0"], "example_inputs": None}
    plan = replace(PLAN, request=request.given, model=replace(PLAN.model, source=""))
    assert command_of(plan) == "partitioner.plan(model, devices=['GPU:0'], step=Step(example_inputs=None))"
