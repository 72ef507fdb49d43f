"""`--plan`: a plan that was made before, in place of planning; `--retarget`: on other devices than it was made for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from partitioner.cli.files import load_model_plan
from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName, parse_devices

if TYPE_CHECKING:
    from partitioner.plan_view import Plan

_OF_PLANNING = (
    *("batch_size", "input_shape", "training", "loss", "optimizer", "hardware", "link", "topology", "costs"),
    *("strategy", "replicas", "microbatches", "schedule", "recompute", "updates", "max_staleness"),
    *("objective", "pin", "forbid", "colocate", "time_limit", "what_if", "seed", "cache"),
)
"""Destinations of options that say how to plan, and that a plan has answered."""


def given_plan(options: argparse.Namespace) -> Plan:
    """The plan of `--plan` for MODEL, on the devices of `--retarget` and within `--memory-limit`.

    Raises:
        UsageError: The file is no plan of a model, an option says how to plan, or devices contradict the plan.
        InfeasibleError: The plan's predicted peak exceeds a limit.
    """
    flags = [flag for name, flag in options.given.items() if name in _OF_PLANNING]
    if flags:
        raise UsageError(
            f"{', '.join(flags)} {'says' if len(flags) == 1 else 'say'} how to plan, and --plan gives a plan",
            help=f"leave {'it' if len(flags) == 1 else 'them'} out, or leave --plan out to plan anew",
        )
    plan = load_model_plan(options.plan, "MODEL --plan")
    if options.retarget:
        plan = plan.retargeted(_pairs(options.retarget, plan))
    if options.devices:
        _refuse_other_devices(parse_devices(options.devices), plan)
    if options.memory_limit:
        plan = plan.within(options.memory_limit)
    return replace(plan, model=replace(plan.model, source=options.model))


def refuse_without_plan(options: argparse.Namespace) -> None:
    """Refuse `--retarget` where there is no plan to retarget.

    Raises:
        UsageError: There is none.
    """
    if options.retarget:
        raise UsageError(
            "--retarget is of a plan that was made before, and none is given", help="--plan plan.json, or --devices"
        )


def _pairs(text: str, plan: Plan) -> dict[str, str]:
    """New device by device of the plan, from `OLD=NEW,OLD=NEW`.

    Raises:
        UsageError: A pair is no pair, or a device is named twice.
    """
    pairs: dict[str, str] = {}
    for part in text.split(","):
        old, equals, new = part.partition("=")
        if not (equals and old.strip() and new.strip()):
            raise UsageError(
                f"--retarget {text!r}: {part!r} does not say which device of the plan becomes which; "
                "expected OLD=NEW,OLD=NEW",
                notes=[f"devices of the plan: {', '.join(_used(plan))}"],
                help=f"e.g. --retarget {_example(text, plan)}",
            )
        if old.strip() in pairs:
            raise UsageError(f"--retarget names {old.strip()} twice")
        pairs[old.strip()] = new.strip()
    return pairs


def _example(text: str, plan: Plan) -> str:
    """What was meant by a list of as many devices as the plan uses, or one pair."""
    old, new = _used(plan), text.split(",")
    if "=" in text or len(old) != len(new):
        return f"{old[0]}=CPU:0"
    return ",".join(f"{was}={to}" for was, to in zip(old, new, strict=True))


def _refuse_other_devices(given: Sequence[DeviceName], plan: Plan) -> None:
    planned = [DeviceName.parse(info.name) for info in plan.devices]
    missing = [name.short for name in planned if name not in given]
    more = [name.short for name in given if name not in planned]
    if missing or more:
        differences = [("in the plan alone", missing), ("in --devices alone", more)]
        raise UsageError(
            "--devices and the devices of the plan differ",
            notes=[f"{where}: {', '.join(names)}" for where, names in differences if names],
            help="leave --devices out; to run the plan on other devices: --retarget OLD=NEW,OLD=NEW",
        )


def _used(plan: Plan) -> list[str]:
    return [DeviceName.parse(name).short for name in plan.used_devices]
