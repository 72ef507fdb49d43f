"""Files of costs that were measured on other devices, or on other models."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import Builder, topology

from cost_models.measured import MeasuredCosts, MeasuredDevice, MeasuredOp
from partitioner.errors import UsageError
from partitioner.hardware.resolve import chosen_topology
from partitioner.ir.costed import CostedGraph
from partitioner.measure.imported_costs import costs_notes, refuse_other_devices, refuse_other_ops
from partitioner.planner.document.inferred_ops import inferred_ops
from partitioner.spelling import argument, as_python


def measured(*types: str, kind: str = "GPU", title: str = "Tesla T4", hardware: str = "t4") -> MeasuredDevice:
    ran = {
        f"{op_type} float32[8]": MeasuredOp(
            type=op_type, dtype="float32", flops=8, moved_bytes=64, seconds=1e-5, num_runs=3
        )
        for op_type in types
    }
    return MeasuredDevice(type=kind, title=title, hardware=hardware, overhead_seconds=1e-6, ops=ran)


def costs(*devices: MeasuredDevice, **versions: str) -> MeasuredCosts:
    return MeasuredCosts(versions=versions, devices=devices)


def refused(known: MeasuredCosts, devices: str, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        refuse_other_devices("c.json", known, chosen_topology(devices, **options)[1])
    return caught.value


def test_costs_of_what_is_planned_for_are_taken() -> None:
    known = costs(measured("MatMul"), measured("MatMul", kind="CPU", title="Xeon", hardware="cpu-core"))
    refuse_other_devices("c.json", known, chosen_topology("GPU:0-1,CPU:0", hardware="t4")[1])


def test_a_type_of_device_that_the_file_lacks_is_named_with_what_it_has() -> None:
    error = refused(costs(measured("MatMul", "Relu")), "GPU:0,CPU:0", hardware="t4")
    assert error.message == "c.json holds no costs of a CPU, and CPU:0 is planned for"
    assert error.notes == ("c.json has: GPU Tesla T4 (as t4), 2 ops",)
    assert error.help is not None
    error = refused(costs(), "GPU:0")
    assert error.notes == ("c.json has no device",)


@pytest.mark.parametrize("options", [{"hardware": "h100-sxm"}, {"topology": "dgx-h100"}])
def test_another_gpu_than_was_measured_is_refused_with_both_names(options: dict[str, str]) -> None:
    error = refused(costs(measured("MatMul")), "GPU:0-1", **options)
    assert error.message == "c.json holds no costs of h100-sxm, which GPU:0 is planned as"
    assert error.notes == ("c.json has: GPU Tesla T4 (as t4), 1 ops",)
    assert error.help is not None
    assert error.help.startswith(as_python(argument("hardware", "t4")))


def test_a_gpu_that_is_only_assumed_is_not_planned_with_costs_of_another() -> None:
    assert "hardware='t4'" in str(refused(costs(measured("MatMul")), "GPU:0-1"))


def graph(**seconds: float) -> CostedGraph:
    made = Builder()
    for op_type, taken in seconds.items():
        made.add(op_type.lower(), taken, type=op_type)
    return made.costed(topology(2))


def test_costs_that_know_no_op_of_the_model_are_refused() -> None:
    costed = graph(Conv2D=1.0, Softmax=1.0, Reshape=0.0)
    refuse_other_ops("c.json", costed, {0: measured("MatMul", "Softmax")})
    with pytest.raises(UsageError, match=r"c\.json knows no op like those of this model on GPU:1") as caught:
        refuse_other_ops("c.json", costed, {0: measured("Conv2D"), 1: measured("MatMul", "Relu", "Reshape")})
    assert caught.value.notes == ("measured: MatMul, Relu, Reshape", "model:    Conv2D, Softmax")
    with pytest.raises(UsageError, match="knows no op") as caught:
        refuse_other_ops("c.json", costed, {0: measured()})
    assert caught.value.notes[0] == "measured: nothing"
    refuse_other_ops("c.json", costed, {})
    refuse_other_ops("c.json", graph(Reshape=0.0), {0: measured("MatMul")})


def test_a_plan_tells_of_other_versions_and_another_machine() -> None:
    device = measured("MatMul", kind="CPU", title="Xeon", hardware="cpu-core")
    told = costs_notes(
        "c.json",
        costs(device, tensorflow="2.20.0"),
        {0: device, 1: device},
        {0: "EPYC", 1: "EPYC"},
        {"tensorflow": "2.21.0"},
    )
    assert told == [
        "c.json was measured with TensorFlow 2.20.0, this is 2.21.0",
        "c.json was measured on Xeon, this machine has EPYC",
    ]
    same = costs(device, tensorflow="2.21.0")
    assert costs_notes("c.json", same, {0: device}, {0: "Xeon"}, {"tensorflow": "2.21.0"}) == []
    # A GPU that is not here has no title to compare.
    assert costs_notes("c.json", costs(measured("MatMul")), {0: measured("MatMul")}, {0: ""}, {}) == []


def test_a_plan_tells_of_costs_of_steps_that_were_compiled() -> None:
    device = measured("MatMul", kind="CPU", title="Xeon", hardware="cpu-core")
    compiled = costs(device, tensorflow="2.21.0", jit_compile="on")
    here = {"tensorflow": "2.21.0"}
    assert costs_notes("c.json", compiled, {0: device}, {0: "Xeon"}, here) == [
        "c.json was measured compiled by XLA, and the plan is for steps without XLA"
    ]
    assert costs_notes("c.json", compiled, {0: device}, {0: "Xeon"}, {**here, "jit_compile": "on"}) == []


def test_shares_of_what_was_inferred_by_hand() -> None:
    made = Builder()
    made.add("known", 1.0, type="MatMul")
    made.add("other", 1.0, type="MatMul")
    made.add("conv", 1.0, type="Conv2D")
    made.add("free", 0.0, type="Reshape")
    plain = made.costed(topology(2))
    costed = CostedGraph(
        graph=plain.graph,
        costs=plain.costs,
        topology=plain.topology,
        measured={0: (5.0, 1.0, 3.0, 0.0), 1: (5.0, 2.0, 4.0, 0.0)},
        measured_ops=frozenset({"known"}),
    )
    assert inferred_ops(costed) == {"MatMul": 3 / 20, "Conv2D": 7 / 20}
    assert sum(inferred_ops(costed).values()) + costed.measured_share == 1.0
    assert inferred_ops(plain) == {}
