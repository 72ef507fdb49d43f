"""Every kind of model x stages x microbatches x schedule x recompute trains as if it ran in one piece.

Some nine hundred cases, so by hand: `python -m pytest -m grid`. The parts of every model are pinned to devices, so
that a case has the stages it says: one per device, or those of `interleaved` or `zb-v`.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName
from partitioner.stages.programs import stage_programs
from partitioner.stages.schedules import ScheduleKind
from partitioner.verification.audit import misplaced_ops
from tests.staged import CASES, audited, bench, distances
from tests.twins import as_one, cpus, relative

# Relative: of every loss, and of all trained weights as one vector.
TOLERANCE = 1e-6
# Of a single variable or slot, against the largest difference of one when the unplaced model gets the same rows
# reversed: a small gradient that is a sum of large parts (of a bias, say) is rounded in their size, and Adam squares
# it. One other order of sums is no bound on all others: up to 5.9 times its difference was seen, in a slot of 1e-6.
CONTROL_FACTOR = 10.0

pytestmark = pytest.mark.grid

SCHEDULES = ["sequential", "gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved"]
# The last one, because three devices interleave neither one, four nor eight microbatches.
PASSES = [*product([2, 3, 4], [1, 4, 8], SCHEDULES), (3, 6, "interleaved")]


@pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])
@pytest.mark.parametrize(("num_devices", "microbatches", "schedule"), PASSES)
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_equal_the_unplaced_models(
    name: str, num_devices: int, microbatches: int, schedule: str, recompute: bool
) -> None:
    made = bench(name)
    stage_devices = ScheduleKind(schedule).stages_on(cpus(num_devices))
    placed = made.placed(stage_devices, microbatches=microbatches, schedule=schedule, recompute=recompute)
    if schedule == "interleaved" and microbatches % num_devices:
        with pytest.raises(UsageError, match="multiple of the devices"):
            made.trained(placed)
        return
    found = made.trained(placed)

    step, execution, executed = audited(placed, made.data)
    programs = stage_programs(step, execution, results=("loss", "y_pred"))
    assert programs.stages == tuple(DeviceName.parse(name).canonical for name in stage_devices)
    assert len(programs.backward) == len(programs.stages)
    assert (execution.num_microbatches, execution.schedule) == (microbatches, schedule)
    assert programs.recomputed == frozenset(range(len(programs.stages)) if recompute else ())

    for loss, reference in zip(found.losses, made.expected.losses, strict=True):
        assert loss == pytest.approx(reference, rel=TOLERANCE)
    assert relative(as_one(found.weights), as_one(made.expected.weights)) < TOLERANCE
    assert max(distances(found, made.expected)) < max(TOLERANCE, CONTROL_FACTOR * made.control)
    for state, reference in zip(found.states, made.expected.states, strict=True):
        np.testing.assert_array_equal(state, reference)

    compared, misplaced = misplaced_ops(executed, execution.placement)
    assert misplaced == ()
    assert compared > len(placed.plan.placement) / 4
