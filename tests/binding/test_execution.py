"""How a planned step runs: what runs again, and where that is known by other names."""

from __future__ import annotations

from dataclasses import replace

import pytest

import partitioner
from partitioner.binding.execution import execution_of_plan
from partitioner.binding.traced_step import trace
from tests.models import MODELS
from tests.twins import cpus


@pytest.mark.parametrize("known", [True, False])
def test_all_ops_of_a_stage_run_again_where_its_cheap_ops_have_other_names(known: bool) -> None:
    """They could not be found otherwise, and all activations would be kept."""
    model = MODELS["mlp"]()
    plan = partitioner.plan(model, cpus(2), batch_size=8, strategy="layer-split", microbatches=2, time_limit=4)
    step = trace(model, training=True, batch_size=8, input_shapes={}).step
    cheap = next(op.name for op in step.graph.ops if op.type == "MatMul")
    stages = tuple(replace(stage, recompute=True, selective=stage.index == 0) for stage in plan.stages)
    plan = replace(plan, stages=stages, rerun=(cheap if known else "elsewhere/MatMul",))
    execution = execution_of_plan(plan, step, plan.placement, {name: name for name in plan.used_devices})
    assert set(execution.recompute) == {0, 1}
    assert execution.rerun == ({0: {cheap}} if known else {})
