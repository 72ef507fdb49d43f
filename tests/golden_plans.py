"""Plans kept from before the house was rebuilt: which command lines, and what of a plan is kept.

    python -m tests.golden_plans DIR        plan all of them and write one file each

A plan whose search ended before its time limit is the same on every machine: hardware is named, so nothing of this
machine is in it. Ops take the time of their roofline, as on a device whose multiprocessors are not known, so that what
changes in the costs of GPUs changes no plan here.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from cost_models.catalogue import catalogue
from cost_models.hardware import Device

HERE = Path(__file__).parent
GPUS = ("--hardware", "v100-16gb", "--link", "pcie3", "--batch-size", "64", "--time-limit", "120")

_SPLIT = ("--devices", "GPU:0-1", "--strategy", "layer-split", *GPUS)
_AUTO = ("--devices", "GPU:0-1", *GPUS)
_MIXED = ("--devices", "GPU:0-3", "--strategy", "mixed", "--replicas", "2", "--microbatches", "4", *GPUS)
_INFER = ("--devices", "GPU:0-2", "--strategy", "layer-split", "--inference", *GPUS)

CASES: dict[str, tuple[str, ...]] = {
    **{
        f"{name}-split": (f"models.py:{name}", *_SPLIT)
        for name in (
            "mlp",
            "cnn",
            "resnet",
            "transformer",
            "two_towers",
            "tied",
            "lstm",
            "bidirectional_gru",
            "branching",
            "nested",
            "siamese",
            "regularized",
            "frozen",
            "float16",
        )
    },
    **{f"{name}-auto": (f"models.py:{name}", *_AUTO) for name in ("mlp", "cnn", "transformer", "lstm", "two_towers")},
    **{f"{name}-mixed": (f"models.py:{name}", *_MIXED) for name in ("mlp", "transformer", "tied")},
    **{f"{name}-inference": (f"models.py:{name}", *_INFER) for name in ("mlp", "resnet", "transformer", "lstm")},
    "mlp-interleaved": ("models.py:mlp", *_SPLIT, "--schedule", "interleaved", "--microbatches", "4"),
    "transformer-1f1b": ("models.py:transformer", *_SPLIT, "--schedule", "1f1b", "--microbatches", "8"),
    "transformer-recompute": ("models.py:transformer", *_SPLIT, "--microbatches", "4", "--recompute", "all"),
    "mlp-mirrored": ("models.py:mlp", "--devices", "GPU:0-3", "--strategy", "mirrored", *GPUS),
    "mlp-async": ("models.py:mlp", "--devices", "GPU:0-1", "--strategy", "mirrored", "--updates", "async", *GPUS),
    "mlp-shared": ("models.py:mlp", "--devices", "GPU:0-3", "--strategy", "mixed", "--replicas", "3,1", *GPUS),
    "mlp-memory": ("models.py:mlp", *_SPLIT, "--objective", "memory"),
    "mlp-pinned": ("models.py:mlp", *_SPLIT, "--pin", "hidden_1=GPU:1", "--what-if"),
    "small-dgx": ("cli_models/small.py", "--topology", "dgx-h100", "--batch-size", "64", "--time-limit", "120"),
    "encoder-auto": ("cli_models/encoder.py", *_AUTO),
    "cnn_28x28-auto": ("../examples/cnn_28x28.py", *_AUTO),
}


def kept(plan: dict[str, Any]) -> dict[str, Any]:
    """What of a plan must stay: all that is decided and predicted; a placement by its digest."""
    solver = {key: plan["solver"][key] for key in ("status", "objective", "lower_bound", "gap")}
    limits = ("headroom_bytes", "reserved_bytes")  # of the hardware, not of the plan
    memory = [{key: value for key, value in use.items() if key not in limits} for use in plan["memory"]]
    digest = hashlib.sha256(json.dumps([plan["placement"], plan["timeline"], memory], sort_keys=True).encode())
    same = ("strategy", "num_replicas", "num_stages", "num_microbatches", "schedule", "updates", "max_staleness",
            "predicted", "stages", "baselines", "considered", "links")  # fmt: skip
    new = ("compiled", "uncompiled")  # what golden plans do not have yet
    plan = plan | {"stages": [{key: v for key, v in stage.items() if key not in new} for stage in plan["stages"]]}
    what_if = [{"after": one["after"], "before": one["before"]} for one in plan["what_if"]]
    return {**{key: plan[key] for key in same}, "solver": solver, "what_if": what_if, "digest": digest.hexdigest()}


def planned(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What is kept of the plan of a command line."""
    import keras

    from partitioner.cli import main

    keras.backend.clear_session()
    out = io.StringIO()
    model, *options = arguments
    known = cast("dict[str, Device]", catalogue().devices)
    plain = {"v100-16gb": replace(known["v100-16gb"], multiprocessors=0)}
    with redirect_stdout(out), patch.dict(known, plain):
        code = main([str(HERE / model), *options, "--dry-run", "--json", "-q"])
    assert code == 0, (arguments, code)
    return kept(json.loads(out.getvalue()))


def _write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, arguments in CASES.items():
        plan = planned(arguments)
        print(f"{name:24} {plan['solver']['status']:10} {plan['solver']['gap']:.3f} {plan['strategy']}", flush=True)
        (directory / f"{name}.json").write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
