"""Emitted graphs are fit for GPUs: a kernel for every node, and memory on which both sides of a call agree.

The registry of the x86-64 wheels lists kernels for GPUs, so no GPU is needed: graphs are emitted for devices that stand
in, and the GPUs' names are written over theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import keras
import pytest
from asking import asked
from tensorflow.core.protobuf import saved_model_pb2

import partitioner
from partitioner.emit.graph.graph_def import rename_devices
from partitioner.emit.pipeline import all_reduce, staged_step
from partitioner.gpu_kernels import knows_gpu_kernels
from partitioner.ir.step import RESULTS
from partitioner.verification.gpu_lint import Fault, faults
from tests import models

pytestmark = pytest.mark.skipif(not knows_gpu_kernels(), reason="this TensorFlow lists no kernels of GPUs")

STANDING_IN = {f"GPU:{index}": f"CPU:{1 + index}" for index in range(4)}
MODES: dict[str, dict[str, Any]] = {
    "one-piece": {"strategy": "layer-split", "microbatches": 1},
    "gpipe": {"strategy": "layer-split", "microbatches": 4, "schedule": "gpipe"},
    "1f1b": {"strategy": "layer-split", "microbatches": 4, "schedule": "1f1b"},
    "zb-h1": {"strategy": "layer-split", "microbatches": 4, "schedule": "zb-h1"},
    "interleaved": {"strategy": "layer-split", "microbatches": 4, "schedule": "interleaved"},
    "mirrored": {"strategy": "mirrored"},
    "mixed": {"strategy": "mixed", "replicas": 2, "devices": "GPU:0-3"},
    "async": {"strategy": "mirrored", "updates": "async"},
}
POLICIES = ("float32", "mixed_float16")
COMPILED = (False, True)
QUICK = (
    ("mlp", "gpipe", "float32", False),
    ("lstm", "1f1b", "mixed_float16", False),
    ("two_towers", "mirrored", "float32", False),
    ("lstm", "gpipe", "float32", True),
    ("transformer", "one-piece", "float32", True),
    ("cnn", "mixed", "mixed_float16", True),
    ("mlp", "zb-h1", "float32", True),
)


def cases() -> Iterator[Any]:
    for case in product(models.MODELS, MODES, POLICIES, COMPILED):
        if case[0] == "regularized" and case[2] != "float32":  # Keras cannot add up its terms in 16 bits
            continue
        if case[:2] == ("tied", "interleaved"):  # its ends share a matrix and so a device: no four stages
            continue
        # Continuous integration has time for the modes that differ most, in 16 bits for one, and not for large models.
        is_slow = case[1] in ("one-piece", "mixed") if case[2] == "float32" else case[1] == "gpipe"
        is_large = case[0] in ("transformer", "lstm", "bidirectional_gru")
        mark = pytest.mark.slow if is_slow and not is_large and not case[3] else pytest.mark.grid
        name = "-".join((*case[:3], *(["compiled"] if case[3] else [])))
        yield pytest.param(*case, id=name, marks=[] if case in QUICK else mark)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the process have its logical devices fixed, so GPUs cannot have new ones. GPUs share no memory."""
    full = {name: partitioner.api.set_up_devices([actual]).popitem()[0] for name, actual in STANDING_IN.items()}
    canonical = {f"/job:localhost/replica:0/task:0/device:{name}": actual for name, actual in full.items()}
    monkeypatch.setattr(
        partitioner.api.runtime, "set_up_devices", lambda names, *_: {name: canonical.get(name, name) for name in names}
    )
    for module in (all_reduce, staged_step):
        monkeypatch.setattr(module, "share_memory", lambda devices: False)


def placed(name: str, mode: str, policy: str = "float32", *, jit_compile: bool = False) -> Any:
    keras.backend.clear_session()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = models.MODELS[name]()
    finally:
        keras.config.set_dtype_policy(before)
    options = {"devices": "GPU:0,GPU:1"} | MODES[mode]
    if options["strategy"] == "layer-split":
        weighted = [layer.name for layer in model.layers if layer.weights]
        pieces = 4 if mode == "interleaved" else 2
        options["pins"] = {layer: f"GPU:{pieces * index // len(weighted) % 2}" for index, layer in enumerate(weighted)}
    if name == "subclassed":
        options["input_shape"] = (models.WIDTH,)
    options |= {"batch_size": 8, "hardware": "a100-40gb", "time_limit": 5.0, "jit_compile": jit_compile}
    plan = partitioner.plan(model, **asked(**options))
    return partitioner.place(model, plan)


def found_in(model: Any) -> list[Fault]:
    planned = {actual: name for name, actual in model.program.devices.items()}
    everything: list[Fault] = []
    for kind, specs in model.program.signatures():
        graph_def = model.program.function(kind, specs, results=RESULTS[kind]).graph.as_graph_def()
        rename_devices(graph_def, planned)
        everything += faults(graph_def, model.plan.used_devices)
    return everything


@pytest.mark.parametrize(("name", "mode", "policy", "jit_compile"), cases())
def test_every_emitted_graph_is_fit_for_gpus(
    name: str, mode: str, policy: str, jit_compile: bool, tmp_path: Any
) -> None:
    model = placed(name, mode, policy, jit_compile=jit_compile)
    assert found_in(model) == []
    if policy == "float32" and mode in ("gpipe", "1f1b", "mirrored"):
        model.export(tmp_path / "saved")
        saved = saved_model_pb2.SavedModel.FromString((tmp_path / "saved/saved_model.pb").read_bytes())
        assert faults(saved.meta_graphs[0].graph_def, model.plan.used_devices) == []
