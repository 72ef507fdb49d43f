"""What stages of other processes read goes from process to process, and the model trains to the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests import models
from tests.twins import losses
from tests.workers import SECONDS, environment, worker_in

STEPS = 3
ROWS = 16

SCRIPT = f"""
import json, sys
ROWS, STEPS = {ROWS}, {STEPS}
import partitioner
devices = ["CPU:0", "/job:worker/task:0/CPU:0", "/job:worker/task:1/CPU:0"]
partitioner.set_up_devices(devices, cluster={{"worker": sys.argv[1:]}})
import keras
import tensorflow as tf
from partitioner.ir.step import StepKind
from tests import models
from tests.asking import asked
from tests.twins import losses
keras.utils.set_random_seed(3)
model, data = models.skipping(), models.vectors(ROWS)
pins = {{f"part_{{part}}": device for part, device in enumerate(devices)}}
how = {{"strategy": "layer-split", "microbatches": 2, "schedule": "1f1b", "batch_size": ROWS, "time_limit": 5}}
placed = partitioner.place(model, partitioner.plan(model, **asked(devices=devices, pins=pins, **how)))
specs = [tf.TensorSpec([ROWS, *array.shape[1:]], array.dtype) for array in data]
graph = placed.program.function(StepKind.TRAIN, (*specs, None)).graph
copies = [op for op in graph.get_operations() if op.type == "Identity" and "task:0" in op.device]
handed = [op for op in copies if any("task:1" in reader.device for reader in op.outputs[0].consumers())]
print(json.dumps({{
    "losses": losses(placed, data, STEPS),
    "passed": partitioner.verify(model, placed, num_steps=2).passed,
    "handed": [op.inputs[0].op.type for op in handed],
}}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("handing_on")
    with worker_in(folder) as one, worker_in(folder) as other:
        addresses = [f"localhost:{worker.port}" for worker in (one, other)]
        done = subprocess.run(
            (sys.executable, "-c", SCRIPT, *addresses), cwd=Path(folder), env=environment(), capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_second_process_hands_each_microbatch_on_to_the_third(found: Any) -> None:
    # Of both microbatches, the output of the first part, as the call of its stage returns it.
    assert found["handed"] == ["RemoteCall", "RemoteCall"]


def test_it_trains_as_unplaced(found: Any) -> None:
    keras.utils.set_random_seed(3)
    np.testing.assert_allclose(found["losses"], losses(models.skipping(), models.vectors(ROWS), STEPS), rtol=1e-6)
    assert found["passed"]
