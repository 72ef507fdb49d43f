"""The arguments of `partition MODEL`, by group; `EVERYDAY` has those that most people need."""

from __future__ import annotations

import argparse

from partitioner.cli.arguments import (
    add_constraints,
    add_memory_limit,
    add_output,
    add_search,
    add_verbosity,
    count,
    count_or_auto,
    count_or_zero,
    counts_or_auto,
)

EVERYDAY = {
    *("model", "devices", "hardware", "memory_limit", "batch_size", "input_shape", "training", "strategy"),
    *("replicas", "microbatches", "pin", "time_limit", "output", "svg", "json", "dry_run", "verify", "verbose"),
    *("plan", "help", "help_all"),
}


def add_step(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for the step of the model."""
    group.add_argument(
        "--batch-size", type=count, default=32, metavar="N", help="rows of a batch (default: %(default)s)"
    )
    group.add_argument(
        "--input-shape",
        action="append",
        default=[],
        metavar="SIZES",
        help="open sizes but the batch: [NAME=]28,28,1; repeatable",
    )
    group.add_argument(
        "--inference", dest="training", action="store_false", help="plan inference (default: a training step)"
    )
    group.add_argument("--loss", metavar="NAME", help="Keras loss (default: as compiled, else mean_squared_error)")
    group.add_argument("--optimizer", metavar="NAME", help="Keras optimizer (default: as compiled, else adam)")
    group.add_argument(
        "--jit-compile",
        choices=["auto", "on", "off"],
        default="auto",
        help="whether XLA compiles what each device runs (default: as the model was compiled, else on GPUs)",
    )


def add_machine(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for the devices."""
    group.add_argument("--devices", metavar="LIST", help="GPU:0,GPU:1 or GPU:0-3; they need not be here")
    group.add_argument("--hardware", metavar="NAME", help="what they are: a100-80gb, h100-sxm, t4, ...")
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
    add_memory_limit(group)


def add_plan(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for a plan that was made before."""
    group.add_argument("--plan", metavar="PLAN", help="place by this plan.json, and search nothing")
    group.add_argument(
        "--retarget",
        metavar="OLD=NEW,...",
        help="of --plan: other devices in place of the plan's, GPU:0=CPU:0,GPU:1=CPU:1 or GPU:0-3=GPU:4-7",
    )


def add_parallelism(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for strategy, replicas, microbatches and schedule."""
    group.add_argument(
        "--strategy",
        metavar="NAME",
        choices=["auto", "single", "layer-split", "mirrored", "mixed"],
        default="auto",
        help="auto, single, layer-split (stages on all devices), mirrored (a replica on each), mixed (replicas of "
        "several devices); auto takes as many devices as pay",
    )
    group.add_argument(
        "--replicas",
        type=counts_or_auto,
        default="auto",
        metavar="N|N,N|auto",
        help="copies of the model, each with its part of a batch; 3,1: three, and a device that all share",
    )
    group.add_argument(
        "--microbatches",
        type=count_or_auto,
        default="auto",
        metavar="N|auto",
        help="consecutive parts of a batch (default: auto)",
    )
    group.add_argument(
        "--schedule",
        choices=["auto", "sequential", "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved"],
        default="auto",
        help="in which order stages work on microbatches (default: %(default)s)",
    )
    group.add_argument(
        "--recompute",
        choices=["auto", "none", "all"],
        default="auto",
        help="stages whose backward pass reruns the forward pass to save memory; auto takes those that must, and only "
        "their cheap ops where that is enough (default: %(default)s)",
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
        type=count_or_zero,
        metavar="N",
        help="of --updates async: how many updates of others may lie between reading parameters and updating them "
        "(default: 4 per replica)",
    )


def add_goal(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for objective, constraints and search."""
    group.add_argument(
        "--objective",
        choices=["throughput", "memory"],
        default="throughput",
        help="least time of a step, or least memory on the fullest device (default: %(default)s)",
    )
    add_constraints(group, "layers or ops")
    add_search(group, "for tracing and search", default=None, otherwise="10 s for search")
    group.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="search anew (default: take the plan that was made before of the same step and request)",
    )


def add_results(group: argparse._ArgumentGroup) -> None:
    """Add the arguments for the results."""
    add_output(group, "<model>", of_model=True)
    group.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="run the placed model beside the unplaced model, CPUs in place of absent GPUs (default: if all are here)",
    )
    add_verbosity(group)
