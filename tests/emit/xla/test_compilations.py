"""How often XLA compiles: it writes a file for each program, which are counted in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = """
import sys
import partitioner
partitioner.set_up_devices(["CPU:0", "CPU:1", "CPU:2"])
from asking import asked
from tests import models

x, y = models.vectors(84)
options = asked(batch_size=32, strategy="layer-split", jit_compile=True, time_limit=5.0, **eval(sys.argv[1]))
placed = partitioner.auto_place(models.mlp(), ["CPU:1", "CPU:2"], **options)
placed.fit(x, y, batch_size=32, epochs=3, verbose=0)
"""


@pytest.mark.parametrize(
    "options", [{"microbatches": 1}, {"microbatches": 4, "schedule": "1f1b"}], ids=["whole", "1f1b"]
)
def test_a_partial_last_batch_costs_one_more_compilation(options: dict[str, object], tmp_path: Path) -> None:
    """32, 32 and 20 rows, three times."""
    tests = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]),
    }
    subprocess.run([sys.executable, "-c", SCRIPT, repr(options)], env=environment, check=True, capture_output=True)
    compiled = Counter(path.name.split(".")[1] for path in tmp_path.glob("*.before_optimizations.txt"))
    programs = {name: count for name, count in compiled.items() if "partition_compiled" in name}
    assert len(programs) >= 3
    assert max(programs.values()) == 2
