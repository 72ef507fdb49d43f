"""Turn options into the values of the API, before TensorFlow is loaded, so that wrong options are refused at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from partitioner.cli.arguments import by_pattern, shapes
from partitioner.errors import UsageError
from partitioner.options import AsyncUpdates, Constraints, Machine, Parallelism, Request, Search, Step


def request_of(options: argparse.Namespace) -> Request:
    """The request that the options of `partition MODEL` describe.

    Raises:
        UsageError: A value is wrong, or some contradict each other.
    """
    _refuse_what_does_nothing(options)
    return Request(
        step=Step(
            training=options.training,
            loss=options.loss,
            optimizer=options.optimizer,
            input_shape=shapes(options.input_shape),
            jit_compile={"on": True, "off": False}.get(options.jit_compile, "auto"),
            source=options.model,
        ),
        machine=Machine(
            devices=options.devices,
            hardware=options.hardware,
            link=options.link,
            topology=options.topology,
            memory_limit=options.memory_limit,
        ),
        batch_size=options.batch_size,
        strategy=options.strategy,
        replicas=options.replicas,
        microbatches=options.microbatches,
        parallelism=Parallelism(
            schedule=options.schedule,
            recompute=options.recompute,
            updates=AsyncUpdates(max_staleness=options.max_staleness) if options.updates == "async" else "sync",
        ),
        constraints=Constraints(
            pins=by_pattern("pin", options.pin),
            forbid=by_pattern("forbid", options.forbid),
            colocate=tuple(options.colocate),
        ),
        costs=options.costs,
        search=Search(
            objective=options.objective,
            time_limit=options.time_limit,
            seed=options.seed,
            what_if=options.what_if,
            cache=options.cache,
        ),
    )


def _refuse_what_does_nothing(options: argparse.Namespace) -> None:
    if not options.devices and not options.topology:
        raise UsageError("which devices? --devices is missing", help="e.g. --devices GPU:0,GPU:1 or CPU:0,CPU:1")
    if options.costs not in ("analytic", "measured") and not Path(options.costs).is_file():
        raise UsageError(
            f"--costs: there is no file {options.costs!r}",
            help="analytic, measured, or the costs.json that `partition MODEL --costs measured` wrote",
        )
    if options.max_staleness is not None and options.updates != "async":
        raise UsageError(
            "--max-staleness is of asynchronous updates, and these are synchronous",
            help=f"--updates async --max-staleness {options.max_staleness}, or leave it out",
        )
