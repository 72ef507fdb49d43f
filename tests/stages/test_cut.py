"""Cutting a step: small graphs by hand, random ones computed piece by piece, and models that TensorFlow traced."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.specs import TensorSpec
from partitioner.capture.lower.lower import capture_step
from partitioner.capture.trace.objective import training_objective
from partitioner.capture.trace.signature import input_specs
from partitioner.errors import UsageError
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import Op, OpGraph, Phase, Tensor, Variable, VariableKind
from partitioner.ir.stage_programs import CarriedState, Gather, ProgramKind, StageProgram, StagePrograms
from partitioner.ir.step import StepKind
from partitioner.stages.cut import cut
from partitioner.stages.programs import stage_programs
from partitioner.stages.roles import Roles, find_roles
from tests import models

LETTERS = dict(zip(ProgramKind, "IFBWU", strict=True))

# -- graphs by hand: every op has one output, `name:0`, and is written down with the names of the ops it reads ---------


def op(name: str, *reads: str, type: str = "Mul", after: Sequence[str] = (), **fields: Any) -> Op:
    inputs = tuple(f"{read}:0" for read in reads)
    return Op(name=name, type=type, inputs=inputs, outputs=(f"{name}:0",), control_inputs=tuple(after), **fields)


def argument(name: str) -> Op:
    return op(name, type="Placeholder")


def read(name: str, variable: str = "") -> Op:
    return op(name, type="ReadVariableOp", variables=(variable or name,), stateful=True)


def write(name: str, value: str, variable: str, **fields: Any) -> Op:
    return op(name, value, type="AssignVariableOp", variables=(variable,), stateful=True, **fields)


def gradient(name: str, *reads: str, of: str, **fields: Any) -> Op:
    return op(name, *reads, phase=Phase.BACKWARD, differentiates=of, **fields)


def update(name: str, *reads: str, variable: str, **fields: Any) -> Op:
    fields = {"type": "ResourceApplyGradientDescent"} | fields
    return op(name, *reads, phase=Phase.UPDATE, variables=(variable,), stateful=True, **fields)


def graph(*ops: Op, sizes: Mapping[str, int] | None = None, dtypes: Mapping[str, str] | None = None) -> OpGraph:
    """A training step; tensors are vectors of two floats where `sizes` and `dtypes` do not say otherwise."""
    sizes, dtypes = sizes or {}, dtypes or {}
    return OpGraph(
        name="by hand",
        batch_size=8,
        training=True,
        ops=ops,
        tensors=tuple(
            Tensor(
                name=name,
                producer=one.name,
                spec=TensorSpec(shape=(sizes.get(one.name, 2),), dtype=dtypes.get(one.name, "float32")),
            )
            for one in ops
            for name in one.outputs
        ),
        variables=tuple(
            Variable(name=name, spec=TensorSpec(shape=(2,), dtype="float32"), kind=VariableKind.STATE)
            for name in dict.fromkeys(variable for one in ops for variable in one.variables)
        ),
        inputs=tuple(f"{one.name}:0" for one in ops if one.type == "Placeholder"),
    )


def roles_of(whole: OpGraph, **options: Any) -> Roles:
    """Roles where the loss and all effects are wanted."""
    effects = [one.name for one in whole.ops if one.phase is Phase.UPDATE and one.variables]
    return find_roles(whole, **({"results": ["loss:0"], "roots": effects, "seed": "seed:0"} | options))


def cut_up(
    whole: OpGraph,
    placed: Mapping[str, str],
    *,
    devices: Collection[str] | None = None,
    recompute: Collection[int] | None = (),
    rerun: Mapping[int, Collection[str]] = MappingProxyType({}),
    parts_backward: bool = False,
    compiled: Collection[str] = (),
    **options: Any,
) -> StagePrograms:
    """Cut for the loss and all effects; `placed` lists the ops of each device."""
    placement = {name: device for device, names in placed.items() for name in names.split()}
    assert placement.keys() == {one.name for one in whole.ops}
    return cut(
        roles_of(whole, **options),
        placement,
        devices=devices,
        recompute=recompute,
        rerun=rerun,
        parts_backward=parts_backward,
        compiled=compiled,
    )


def shown(programs: StagePrograms) -> list[str]:
    """A line per program: `F0 A: its ops | what it is given -> what it gives`."""
    lines = []
    for program in (*programs.once, *programs.forward, *programs.backward, *programs.weights, *programs.update):
        given, gives = (
            " ".join(name.removesuffix(":0") for name in names) for names in (program.inputs, program.outputs)
        )
        label = f"{LETTERS[program.kind]}{program.stage} {program.device}"
        lines.append(f"{label}: {' '.join(program.ops)} | {given} -> {gives}".replace("  ", " ").rstrip())
    return lines


def gathered(programs: StagePrograms) -> dict[str, Gather]:
    return {name.removesuffix(":0"): how for name, how in programs.gathered.items()}


FORWARD = (
    argument("x"),
    argument("y"),
    read("w1"),
    read("w2"),
    op("a", "x", "w1"),
    op("b", "a"),
    op("c", "b", "w2"),
    op("loss", "c", "y"),
    op("seed", type="Const"),
)
BACKWARD = (
    gradient("dc", "seed", "c", "y", of="loss"),
    gradient("dw2", "b", "dc", of="c"),
    gradient("db", "dc", "w2", of="c"),
    gradient("da", "db", "b", of="b"),
    gradient("dw1", "x", "da", of="a"),
)
UPDATE = (update("u1", "dw1", variable="w1"), update("u2", "dw2", variable="w2"))
TWO = {"A": "x w1 a b da dw1 u1", "B": "y w2 c loss seed dc dw2 db u2"}


def also(placed: Mapping[str, str], **more: str) -> dict[str, str]:
    return {device: f"{names} {more.get(device, '')}" for device, names in placed.items()} | {
        device: names for device, names in more.items() if device not in placed
    }


def test_two_layers_on_two_devices() -> None:
    programs = cut_up(graph(*FORWARD, *BACKWARD, *UPDATE), TWO)
    assert shown(programs) == [
        "I0 A: w1 | -> w1",
        "I1 B: w2 | -> w2",
        "F0 A: a b | x w1 -> b",
        "F1 B: c loss | b w2 y -> c loss",
        "B0 A: da dw1 | db b x -> dw1",
        "B1 B: dc dw2 db | seed c y b w2 -> dw2 db",
        "U0 A: u1 | dw1 ->",
        "U1 B: u2 | dw2 ->",
    ]
    assert gathered(programs) == {"dw1": Gather.SUM, "dw2": Gather.SUM}
    assert programs.stages == ("A", "B")
    assert not (programs.states or programs.recomputed or programs.aliases or programs.relocated)


def test_a_compiled_backward_program_computes_sizes_again_from_what_it_has() -> None:
    """`size` is of `h`, which nobody keeps; it follows from x, which is given for `dw1`, and from a parameter."""
    forward = (*FORWARD[:5], op("h", "a"), op("b", "h"), op("size", "h", type="Shape"), *FORWARD[6:])
    backward = (*BACKWARD[:3], gradient("da", "db", "b", "size", of="b"), BACKWARD[4])
    whole = graph(*forward, *backward, *UPDATE)
    placed = also(TWO, A="h size")
    given_size = "B0 A: da dw1 | db b size x -> dw1"
    assert given_size in shown(cut_up(whole, placed))
    every_op = {one.name for one in whole.ops}
    programs = shown(cut_up(whole, placed, compiled=every_op))
    assert "F0 A: a h b size | x w1 -> b" in programs
    assert "B0 A: a h size da dw1 | x w1 db b -> dw1" in programs
    for plain in ("h", "dw1"):
        assert given_size in shown(cut_up(whole, placed, compiled=every_op - {plain}))


def test_a_single_stage_runs_both_passes_in_one_program_unless_it_recomputes() -> None:
    whole = graph(*FORWARD, *BACKWARD, *UPDATE)
    alone = {"A": " ".join(one.name for one in whole.ops)}
    programs = cut_up(whole, alone)
    assert shown(programs) == [
        "I0 A: w1 w2 | -> w1 w2",
        "F0 A: a b c loss dc dw2 db da dw1 | x w1 w2 y seed -> loss dw2 dw1",
        "U0 A: u1 u2 | dw1 dw2 ->",
    ]
    assert gathered(programs) == {"dw1": Gather.SUM, "dw2": Gather.SUM}
    assert shown(cut_up(whole, alone, recompute=None))[1:3] == [
        "F0 A: a b c loss | x w1 w2 y -> loss",
        "B0 A: a b c dc dw2 db da dw1 | x w1 w2 seed y -> dw2 dw1",
    ]


def test_a_stage_that_recomputes_keeps_only_what_enters_it() -> None:
    whole = graph(*FORWARD, *BACKWARD, *UPDATE)
    assert shown(cut_up(whole, TWO, recompute=None))[2:6] == [
        "F0 A: a b | x w1 -> b",
        "F1 B: c loss | b w2 y -> loss",
        "B0 A: a b da dw1 | x w1 db -> dw1",
        "B1 B: c dc dw2 db | b w2 seed y -> dw2 db",
    ]
    only_last = cut_up(whole, TWO, recompute=[1])
    assert only_last.recomputed == {1}
    assert shown(only_last)[4:6] == ["B0 A: da dw1 | db b x -> dw1", "B1 B: c dc dw2 db | b w2 seed y -> dw2 db"]


def test_a_stage_with_selective_recompute_runs_the_named_ops_again_and_keeps_what_they_read() -> None:
    whole = graph(*FORWARD, *BACKWARD, *UPDATE)
    programs = cut_up(whole, TWO, recompute=[0], rerun={0: ["b", "c"]}, parts_backward=True)
    assert (programs.recomputed, programs.rerun, programs.rerun_ops) == ({0}, {0: {"b"}}, ("b",))
    assert shown(programs)[2:5:2] == ["F0 A: a b | x w1 -> a b", "B0 A: b da dw1 | a db x -> dw1"]


def test_gradients_that_no_other_stage_waits_for_are_programs_of_their_own() -> None:
    """Nobody waits for the first stage, so that it stays whole; a stage that recomputes makes what its rest reads."""
    whole = graph(*FORWARD, *BACKWARD, *UPDATE)
    programs = cut_up(whole, TWO, parts_backward=True)
    assert shown(programs)[4:7] == [
        "B0 A: da dw1 | db b x -> dw1",
        "B1 B: dc db | seed c y w2 -> dc db",
        "W1 B: dw2 | b dc -> dw2",
    ]
    assert gathered(programs) == {"dw1": Gather.SUM, "dw2": Gather.SUM}
    recomputed = cut_up(whole, TWO, parts_backward=True, recompute=[1])
    assert shown(recomputed) == shown(cut_up(whole, TWO, recompute=[1]))


def test_what_draws_numbers_is_not_drawn_again_by_recompute() -> None:
    ops = [one if one.name != "b" else op("b", "a", "noise") for one in FORWARD]
    ops.insert(5, op("noise", "x", type="RandomUniform", stateful=True))
    programs = cut_up(graph(*ops, *BACKWARD, *UPDATE), also(TWO, A="noise"), recompute=None)
    assert "B0 A: a b da dw1 | x w1 noise db -> dw1" in shown(programs)
    assert "noise:0" in programs.forward[0].outputs


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_pooling_runs_again_for_its_gradient_on_cpus_alone(kind: str) -> None:
    ops = [one if one.name != "b" else op("b", "a", type="MaxPool") for one in FORWARD]
    gradients = [one if one.name != "da" else gradient("da", "a", "b", "db", of="b") for one in BACKWARD]
    placed = {f"/job:localhost/replica:0/task:0/device:{kind}:{i}": names for i, names in enumerate(TWO.values())}
    backward = cut_up(graph(*ops, *gradients, *UPDATE), placed).backward[0]
    if kind == "CPU":
        assert (backward.ops, backward.inputs) == (("b", "da", "dw1"), ("a:0", "db:0", "x:0"))
    else:
        assert (backward.ops, backward.inputs) == (("da", "dw1"), ("a:0", "b:0", "db:0", "x:0"))


def test_a_narrow_type_is_kept_in_place_of_a_wider_one_that_is_made_of_it() -> None:
    """Norms in bfloat16 compute in float32: their casts were kept for the backward pass, twice as large."""
    forward = [one if one.name != "b" else op("b", "a", type="Cast") for one in FORWARD]
    gradients = [one if one.name != "da" else gradient("da", "b", "db", of="b") for one in BACKWARD]
    for narrow, wide, kept in [("bfloat16", "float32", "a"), ("float32", "bfloat16", "b"), ("float32", "int32", "b")]:
        whole = graph(*forward, *gradients, *UPDATE, dtypes={"a": narrow, "b": wide})
        programs = cut_up(whole, TWO)
        assert f"{kept}:0" in programs.forward[0].outputs
        assert ("b" in programs.backward[0].ops, f"{kept}:0" in programs.backward[0].inputs) == (kept == "a", True)


def test_constants_are_copied_to_whoever_reads_them() -> None:
    ops = (
        op("two", type="Const"),
        op("four", "two", "two"),
        *(one if one.name != "c" else op("c", "b", "w2", "four") for one in FORWARD),
        *(one if one.name != "da" else gradient("da", "db", "b", "four", of="b") for one in BACKWARD),
        *UPDATE,
    )
    assert shown(cut_up(graph(*ops), also(TWO, A="two four")))[2:6] == [
        "F0 A: a b | x w1 -> b",
        "F1 B: two four c loss | b w2 y -> c loss",
        "B0 A: two four da dw1 | db b x -> dw1",
        "B1 B: dc dw2 db | seed c y b w2 -> dw2 db",
    ]


def test_a_large_computed_constant_is_computed_once() -> None:
    ops = (
        op("two", type="Const"),
        op("many", "two"),
        *(one if one.name != "c" else op("c", "b", "w2", "many") for one in FORWARD),
        *BACKWARD,
        *UPDATE,
    )
    lines = shown(cut_up(graph(*ops, sizes={"many": 1025}), also(TWO, A="two many")))
    assert "I0 A: two many w1 | -> many w1" in lines
    assert "F1 B: c loss | b w2 many y -> c loss" in lines


def test_a_tied_variable_and_its_gradient_travel() -> None:
    ops = (
        *(one if one.name != "c" else op("c", "b", "w1") for one in FORWARD if one.name != "w2"),
        gradient("dc", "seed", "c", "y", of="loss"),
        gradient("dw_late", "b", "dc", of="c"),
        gradient("db", "dc", "w1", of="c"),
        gradient("da", "db", "b", of="b"),
        gradient("dw_early", "x", "da", of="a"),
        gradient("dw", "dw_early", "dw_late", of="a", type="AddN"),
        update("u", "dw", variable="w1"),
    )
    programs = cut_up(graph(*ops), {"A": "x w1 a b da dw_early dw u", "B": "y c loss seed dc dw_late db"})
    assert shown(programs) == [
        "I0 A: w1 | -> w1",
        "F0 A: a b | x w1 -> b",
        "F1 B: c loss | b w1 y -> c loss",
        "B0 A: da dw_early | db b x -> dw_early",
        "B1 B: dc dw_late db | seed c y b w1 -> dw_late db",
        "U0 A: dw u | dw_early dw_late ->",
    ]
    assert gathered(programs) == {"dw_early": Gather.SUM, "dw_late": Gather.SUM}


def test_the_sum_of_a_skip_connection_goes_where_no_stage_waits_for_a_later_one() -> None:
    """`a` is read by `b` on B and again by `c` on A; the sum of its gradients names `c`, in the last stage."""
    ops = (
        argument("x"),
        op("a", "x"),
        op("b", "a"),
        op("c", "a", "b"),
        op("loss", "c"),
        op("seed", type="Const"),
        gradient("dc", "seed", "c", of="loss"),
        gradient("da_skip", "dc", of="c"),
        gradient("db", "dc", of="c"),
        gradient("da_b", "db", of="b"),
        gradient("da", "da_skip", "da_b", of="c", type="AddN"),
        gradient("dw", "x", "da", of="a"),
        update("u", "dw", variable="w"),
    )
    programs = cut_up(graph(*ops), {"C": "c loss seed dc da_skip db da", "A": "x a dw u", "B": "b da_b"})
    assert programs.stages == ("A", "B", "C")
    assert shown(programs)[3:6] == [
        "B0 A: dw | x da -> dw",
        "B1 B: da_b da | db da_skip -> da",
        "B2 C: dc da_skip db | seed c -> da_skip db",
    ]
    assert programs.relocated == {"da": "B"}


@pytest.mark.parametrize(
    ("reads", "first", "second", "expected"),
    [
        pytest.param(
            ("b", "a"),
            "a",
            "b c",
            ["F0 A: a | x -> a", "F1 B: b c loss shape_b shape_a axes | a -> b c loss axes"],
            id="of what the stage reads anyway, with it",
        ),
        pytest.param(
            ("b",),
            "a b",
            "c",
            ["F0 A: a b shape_a | x -> b shape_a", "F1 B: c loss shape_b axes | b shape_a -> c loss axes"],
            id="of anything else, where that is made",
        ),
    ],
)
def test_shapes_needed_by_a_gradient_of_several_stages_make_no_stage_of_their_own(
    reads: tuple[str, ...], first: str, second: str, expected: list[str]
) -> None:
    """A sum broadcast over a skip connection compares the shapes of both its terms; the skipped one is stage 0's."""
    ops = (
        argument("x"),
        op("a", "x"),
        op("b", "a"),
        op("c", *reads),
        op("loss", "c"),
        op("seed", type="Const"),
        gradient("dc", "seed", "c", of="loss"),
        gradient("shape_b", "b", of="c", type="Shape"),
        gradient("shape_a", "a", of="c", type="Shape"),
        gradient("axes", "shape_b", "shape_a", of="c", type="BroadcastGradientArgs"),
        gradient("db", "dc", "axes", of="c"),
        gradient("dw", "db", "b", of="b"),
        update("u", "dw", variable="w"),
    )
    whole = graph(*ops, dtypes=dict.fromkeys(["shape_a", "shape_b", "axes"], "int32"))
    programs = cut_up(whole, {"A": f"x {first}", "B": f"{second} loss seed dc shape_b shape_a axes db dw u"})
    assert shown(programs)[:2] == expected
    assert sum(len(program.ops) for program in programs.backward) == 3


def test_a_device_may_hold_several_stages() -> None:
    ops = (
        argument("x"),
        op("a", "x"),
        op("b", "a"),
        op("c", "b"),
        op("loss", "c"),
        op("seed", type="Const"),
        gradient("dc", "seed", of="loss"),
        gradient("db", "dc", of="c"),
        gradient("da", "db", of="b"),
        gradient("dx", "da", of="a"),
    )
    programs = cut_up(graph(*ops), {"A": "x a c db dx", "B": "b loss seed dc da"}, results=["loss:0", "dx:0"])
    assert programs.stages == ("A", "B", "A", "B")
    assert [program.ops for program in programs.forward] == [("a",), ("b",), ("c",), ("loss",)]
    assert [program.ops for program in programs.backward] == [("dx",), ("da",), ("db",), ("dc",)]
    assert gathered(programs) == {"dx": Gather.SUM}


def test_inference_has_forwards_and_what_comes_once() -> None:
    programs = cut_up(graph(*FORWARD, *BACKWARD, *UPDATE), TWO, results=["c:0"], roots=())
    assert shown(programs) == ["I0 A: w1 | -> w1", "I1 B: w2 | -> w2", "F0 A: a b | x w1 -> b", "F1 B: c | b w2 -> c"]


def test_ops_of_the_host_go_with_their_readers() -> None:
    """On GPUs A and B, the host holds `b`, read on B, and `shift`, read by nobody and fed by A."""
    ops = (*FORWARD, op("shift", "a"), *BACKWARD, *UPDATE)
    placed = {"A": "x w1 a dw1 u1", "B": "y w2 c loss seed dc dw2 db da u2", "host": "b shift"}
    programs = cut_up(graph(*ops), placed, devices=["A", "B"], results=["loss:0", "shift:0"])
    assert programs.stages == ("A", "B")
    assert programs.forward[0].ops == ("a", "shift")
    assert programs.forward[1].ops == ("b", "c", "loss")
    assert programs.relocated == {}


# -- state -------------------------------------------------------------------------------------------------------------


def moving_average(*, reader: str = "a") -> tuple[Op, ...]:
    """Stage A normalises by what it computes, and keeps an average of it in `mean`."""
    return (
        argument("x"),
        read("old", "mean"),
        op("a", "x"),
        op("new", "old", "a"),
        write("keep", "new", "mean"),
        read("again", "mean"),
        op("b", reader, "again"),
        op("loss", "b"),
    )


def test_state_is_carried_and_read_back_as_what_was_written() -> None:
    programs = cut_up(graph(*moving_average()), {"A": "x old a new keep again b loss"}, seed="", roots=["keep"])
    assert shown(programs) == ["I0 A: old | -> old", "F0 A: a new b loss | x old -> new loss"]
    assert programs.states == (CarriedState(variable="mean", stage=0, read="old:0", written="new:0"),)
    assert programs.aliases == {"again:0": "new:0"}


def test_without_side_effects_only_state_that_results_read_is_carried() -> None:
    """A second draw must differ from the first one, whether or not the generator's state is kept in the end."""
    ops = (
        *moving_average(),
        read("total"),
        op("more", "total", "b"),
        write("count", "more", "total"),
    )
    placed = {"A": "x old a new keep again b loss total more count"}
    with_effects = cut_up(graph(*ops), placed, seed="", roots=["keep", "count"])
    assert [state.variable for state in with_effects.states] == ["mean", "total"]
    without = cut_up(graph(*ops), placed, seed="", roots=())
    assert [state.variable for state in without.states] == ["mean"]
    assert shown(without) == ["I0 A: old | -> old", "F0 A: a new b loss | x old -> new loss"]


def test_a_random_state_advances_though_no_row_decides_it() -> None:
    ops = (
        argument("x"),
        read("state"),
        op("one", type="Const"),
        op("next", "state", "one"),
        write("advance", "next", "state"),
        op("a", "x", "state"),
        op("loss", "a"),
    )
    programs = cut_up(graph(*ops), {"A": "x state one next advance a", "B": "loss"}, seed="", roots=["advance"])
    assert shown(programs) == [
        "I0 A: state | -> state",
        "F0 A: one next a | state x -> next a",
        "F1 B: loss | a -> loss",
    ]
    assert programs.states == (CarriedState(variable="state", stage=0, read="state:0", written="next:0"),)


def test_state_of_two_stages_that_would_serialise_the_pipeline_is_refused() -> None:
    ops = list(moving_average())
    ops[2] = op("a", "x", "old", layer="first")
    ops[3] = op("new", "old", "a", layer="second")
    with pytest.raises(UsageError, match="mean is read by stage 0 and written by stage 1") as caught:
        cut_up(graph(*ops), {"A": "x old a", "B": "new keep again b loss"}, seed="", roots=["keep"])
    assert caught.value.notes == ("layers: first, second",)
    assert "microbatches=1" in str(caught.value)


def test_a_moving_average_in_the_second_stage_of_a_device_is_read_there() -> None:
    """Batch normalization behind a detour: what decays of its average needs no rows, and yet is no work of stage 0."""
    ops = (
        argument("x"),
        op("a", "x"),
        op("b", "a"),
        op("mean", "b"),
        read("old", "average"),
        op("momentum", type="Const"),
        op("decayed", "old", "momentum"),
        op("new", "decayed", "mean"),
        write("keep", "new", "average"),
        op("loss", "mean"),
    )
    placed = {"A": "x a mean old momentum decayed new keep loss", "B": "b"}
    programs = cut_up(graph(*ops), placed, seed="", roots=["keep"])
    assert shown(programs) == [
        "I0 A: old | -> old",
        "F0 A: a | x -> a",
        "F1 B: b | a -> b",
        "F2 A: mean momentum decayed new loss | b old -> new loss",
    ]
    assert programs.states == (CarriedState(variable="average", stage=2, read="old:0", written="new:0"),)


def test_state_that_is_changed_in_place_is_refused() -> None:
    ops = list(moving_average())
    ops.insert(5, op("add", "new", type="AssignAddVariableOp", variables=("mean",), stateful=True, layer="counter"))
    with pytest.raises(UsageError, match=r"add \(AssignAddVariableOp\) uses the variable mean") as caught:
        cut_up(graph(*ops), {"A": "x old a new keep add again b loss"}, seed="", roots=["keep", "add"])
    assert caught.value.notes == ("layer: counter",)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_a_global_norm_makes_levels_of_updates() -> None:
    norm = (
        op("n1", "dw1", phase=Phase.UPDATE),
        op("n2", "dw2", phase=Phase.UPDATE),
        op("norm", "n1", "n2", phase=Phase.UPDATE),
        update("u1", "dw1", "norm", variable="w1"),
        update("u2", "dw2", "norm", variable="w2"),
    )
    programs = cut_up(graph(*FORWARD, *BACKWARD, *norm), also(TWO, A="n1", B="n2 norm"))
    assert shown(programs)[6:] == [
        "U0 A: n1 | dw1 -> n1",
        "U1 B: n2 norm | dw2 n1 -> norm",
        "U2 A: u1 | dw1 norm ->",
        "U3 B: u2 | dw2 norm ->",
    ]


def test_updates_wait_for_control_inputs_over_devices() -> None:
    """The count of steps is read on B before A moves it on: a data-free order that cutting must not lose. A does not
    wait for the update of B, which reads it, too."""
    counted = (
        update("count", variable="steps", type="ReadVariableOp"),
        update("u2", "dw2", "count", variable="w2"),
        update("u1", "dw1", variable="w1"),
        update("move_on", "u1", variable="steps", type="AssignAddVariableOp", after=["count"]),
    )
    programs = cut_up(graph(*FORWARD, *BACKWARD, *counted), also(TWO, A="move_on", B="count"))
    assert [program.ops for program in programs.update] == [("count",), ("u2",), ("u1", "move_on")]
    assert [program.waits_for for program in programs.update] == [(), (), (0,)]


def test_an_update_that_needs_a_value_of_each_microbatch_is_refused() -> None:
    ops = (*FORWARD, *BACKWARD, update("u1", "dw1", "b", variable="w1"), UPDATE[1])
    with pytest.raises(UsageError, match="the update needs b:0"):
        cut_up(graph(*ops), TWO)


def test_parts_of_a_sparse_gradient_are_joined() -> None:
    ops = (
        *FORWARD,
        *BACKWARD,
        gradient("rows", "x", of="a"),
        gradient("shape", "w1", of="a", type="Shape"),
        update("u1", "dw1", "rows", variable="w1", type="ResourceScatterSub"),
        UPDATE[1],
    )
    whole = graph(*ops, dtypes={"rows": "int32", "shape": "int32"})
    sparse = [("dw1:0", "rows:0", "shape:0")]
    programs = cut_up(whole, also(TWO, A="rows shape"), sparse_gradients=sparse, results=["loss:0", "shape:0"])
    gathers = gathered(programs)
    assert gathers["dw1"] is gathers["rows"] is Gather.CONCAT
    assert gathers["dw2"] is Gather.SUM
    assert "shape" not in gathers or gathers["shape"] is Gather.FIRST


def test_the_same_rows_of_every_microbatch_are_summed() -> None:
    """Positions in a sentence: constant indices, so the slices add up."""
    ops = (
        op("rows", type="Const"),
        *FORWARD,
        *BACKWARD,
        update("u1", "dw1", "rows", variable="w1", type="ResourceScatterSub"),
        UPDATE[1],
    )
    programs = cut_up(
        graph(*ops, dtypes={"rows": "int32"}), also(TWO, A="rows"), sparse_gradients=[("dw1:0", "rows:0")]
    )
    assert gathered(programs) == {"dw1": Gather.SUM, "dw2": Gather.SUM}
    assert "rows" in programs.update[0].ops


# -- what holds of every cut -------------------------------------------------------------------------------------------


def check(whole: OpGraph, programs: StagePrograms, *, seed: str) -> None:
    """Every op in exactly the programs it should be, and nothing that a program needs missing when it runs."""
    arguments = {name for one in whole.ops if one.type == "Placeholder" for name in one.outputs} | {seed}
    available = arguments | {state.read for state in programs.states}
    own: dict[str, list[StageProgram]] = {}
    for program in programs.programs:
        missing = set(program.inputs) - available
        assert not missing, f"{program.kind} {program.stage} needs {missing}"
        inside = set(program.inputs)
        for name in program.ops:
            one = whole.op[name]
            reads = {programs.aliases.get(tensor, tensor) for tensor in one.inputs}
            assert reads <= inside, f"{name} of {program.kind} {program.stage} reads {reads - inside}"
            inside.update(one.outputs)
            own.setdefault(name, []).append(program)
        assert set(program.outputs) <= inside
        available.update(program.outputs)
    for state in programs.states:
        assert state.written in available
    for index, program in enumerate(programs.update):
        assert all(other < index for other in program.waits_for)
    for name, where in own.items():
        kinds = [program.kind for program in where]
        one = whole.op[name]
        if len(where) == 1:
            continue
        reruns = kinds == [ProgramKind.FORWARD, ProgramKind.BACKWARD] and where[0].stage in programs.recomputed
        is_copied = not one.variables and not one.stateful
        assert is_copied or (reruns and where[0].stage == where[1].stage), f"{name} is in {kinds}"


PRIME = 2**31 - 1


class Arithmetic:
    """What ops compute, on integers: forward ops are curved, gradients linear in what comes down, sums are sums."""

    def __init__(self, whole: OpGraph, seed: str) -> None:
        self.whole = whole
        self.linear = {seed} | {name for one in whole.ops if one.phase is Phase.BACKWARD for name in one.outputs}

    def value(self, one: Op, reads: Sequence[int]) -> int:
        salt = zlib.crc32(one.name.encode())
        if one.type in ("Const", "ReadVariableOp"):
            return salt % PRIME
        if one.type == "AddN":
            return sum(reads) % PRIME
        if one.phase is Phase.BACKWARD:
            down = sum(value for name, value in zip(one.inputs, reads, strict=True) if name in self.linear)
            rest = sum(value for name, value in zip(one.inputs, reads, strict=True) if name not in self.linear)
            return down * (rest + salt) % PRIME
        return pow(sum((place + 2) * value for place, value in enumerate(reads)) + salt, 2, PRIME)

    def run(self, ops: Iterable[str], given: Mapping[str, int]) -> dict[str, int]:
        """Values of everything that `ops` make; a KeyError where something is missing."""
        values = dict(given)
        for one in map(self.whole.op.__getitem__, ops):
            if not set(one.outputs) <= given.keys():
                value = self.value(one, [values[name] for name in one.inputs])
                values |= dict.fromkeys(one.outputs, value)
        return values

    def in_one_piece(self, rows: Sequence[int]) -> dict[str, int]:
        """Row by row; updates get the sums of what the rows gave."""
        each = [
            self.run([one.name for one in self.whole.ops if one.phase is not Phase.UPDATE], {"x:0": row, "seed:0": 1})
            for row in rows
        ]
        total = {name: sum(values[name] for values in each) % PRIME for name in self.linear if name in each[0]}
        total |= {name: value for name, value in each[0].items() if name not in total}
        return self.run([one.name for one in self.whole.ops if one.phase is Phase.UPDATE], total)

    def in_programs(self, programs: StagePrograms, rows: Sequence[int]) -> dict[str, int]:
        """A microbatch per row, program by program, each knowing only what it is given."""

        def called(program: StageProgram, values: Mapping[str, int]) -> dict[str, int]:
            made = self.run(program.ops, {name: values[name] for name in program.inputs})
            return {name: made[name] for name in program.outputs}

        whole: dict[str, int] = {}
        for program in programs.once:
            whole |= called(program, whole)
        parts = [{"x:0": row, "seed:0": 1} for row in rows]
        for part in parts:
            for program in programs.repeated:
                part |= called(program, whole | part)
        for name, how in programs.gathered.items():
            assert how is Gather.SUM
            whole[name] = sum(part[name] for part in parts) % PRIME
        made = dict(whole)
        for program in programs.update:
            given = {name: made[name] for name in program.inputs}
            made |= self.run(program.ops, given)
        return made


@st.composite
def placed_steps(draw: st.DrawFn) -> tuple[OpGraph, dict[str, str]]:
    """A network with skip connections, shared variables and constants, its gradients, updates with a common norm.

    Every op is on any device, gradients where the op is that they differentiate (as capture keeps them), but for some.
    """
    count = draw(st.integers(1, 7))
    variables = [f"w{index}" for index in range(draw(st.integers(1, 3)))]
    ops: list[Op] = [argument("x"), op("half", type="Const"), *map(read, variables)]
    forward: list[Op] = []
    for index in range(count):
        before = ["x", *(one.name for one in forward)]
        reads = draw(st.lists(st.sampled_from(before[-4:]), min_size=1, max_size=3, unique=True))
        reads += draw(st.lists(st.sampled_from([*variables, "half"]), max_size=1))
        forward.append(op(f"f{index}", *reads))
    sinks = [one.name for one in forward if not any(f"{one.name}:0" in other.inputs for other in forward)]
    forward.append(op("loss", *sinks))
    ops += [*forward, op("seed", type="Const")]
    parts: dict[str, list[Op]] = {}
    for one in reversed(forward):
        down = "seed" if one.name == "loss" else _summed(draw, ops, one.name, parts.get(one.name, []))
        for source in [name.removesuffix(":0") for name in one.inputs]:
            if source not in ("x", "half"):
                made = gradient(f"d_{source}_{one.name}", down, source, of=one.name)
                parts.setdefault(source, []).append(made)
                ops.append(made)
    trained = [variable for variable in variables if variable in parts]
    sums = {variable: _summed(draw, ops, variable, parts[variable]) for variable in trained}
    if trained and draw(st.booleans()):
        ops.append(op("norm", *sums.values(), phase=Phase.UPDATE))
        ops += [update(f"u_{variable}", sums[variable], "norm", variable=variable) for variable in trained]
    else:
        ops += [update(f"u_{variable}", sums[variable], variable=variable) for variable in trained]
    whole = graph(*ops)
    device: dict[str, str] = {}
    for one in whole.ops:
        strays = not one.differentiates or draw(st.integers(0, 7)) == 0
        device[one.name] = draw(st.sampled_from("ABC")) if strays else device[one.differentiates]
    return whole, device


def _summed(draw: st.DrawFn, ops: list[Op], name: str, parts: Sequence[Op]) -> str:
    """The gradient of a value: its only part, or a sum that names the reader that any part belongs to."""
    if len(parts) == 1:
        return parts[0].name
    of = draw(st.sampled_from([part.differentiates for part in parts]))
    ops.append(gradient(f"sum_{name}", *(part.name for part in parts), of=of, type="AddN"))
    return f"sum_{name}"


@settings(deadline=None, max_examples=200)
@given(placed_steps(), st.sampled_from([(), None, (0,), (1, 2)]), st.sampled_from([0, 2, 3]), st.booleans())
def test_any_network_on_any_devices_computes_the_same(
    case: tuple[OpGraph, dict[str, str]], recompute: tuple[int, ...] | None, one_in: int, parts_backward: bool
) -> None:
    """Where stages recompute, they run all ops again, or one in two or three of them."""
    whole, placement = case
    some = [one.name for one in whole.ops if one_in and not zlib.crc32(one.name.encode()) % one_in]
    rerun = dict.fromkeys(recompute or (), some) if one_in else {}
    programs = cut(roles_of(whole), placement, recompute=recompute, rerun=rerun, parts_backward=parts_backward)
    check(whole, programs, seed="seed:0")
    for program in programs.forward:
        own = [one for one in map(whole.op.__getitem__, program.ops) if one.type != "Const"]
        assert {placement[one.name] for one in own if one.phase is Phase.FORWARD} <= {program.device}
    in_programs = {name for program in programs.programs for name in program.ops}
    assert {one.name for one in whole.ops if one.phase is Phase.UPDATE} <= in_programs
    arithmetic, rows = Arithmetic(whole, "seed:0"), [3, 5, 11]
    expected, computed = arithmetic.in_one_piece(rows), arithmetic.in_programs(programs, rows)
    for name in (one.name for one in whole.ops if one.phase is Phase.UPDATE and one.variables):
        assert computed[f"{name}:0"] == expected[f"{name}:0"]


# -- traced models -----------------------------------------------------------------------------------------------------


@cache
def traced(name: str) -> Any:
    model = models.MODELS[name]()
    x, y = models.DATA[name](8)
    if not model.built:
        model(x)
    targets = tf.nest.map_structure(lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype), y)
    return capture_step(
        model, StepKind.TRAIN, (input_specs(model), targets, None), batch_size=8, objective=training_objective(model)
    )


def by_layers(whole: OpGraph, num_devices: int) -> dict[str, str]:
    """Layers dealt in equal runs, colocated ops together; an op of no layer goes with its reader, else to the end."""

    def layer(one: Op) -> str:
        return one.layer.split("/")[0]

    layers = list(dict.fromkeys(layer(one) for one in whole.ops if one.layer and one.phase is Phase.FORWARD))
    of_layer = {path: f"D{index * num_devices // len(layers)}" for index, path in enumerate(layers)}
    of_group = {one.colocation_group: of_layer[layer(one)] for one in reversed(whole.ops) if layer(one) in of_layer}
    del of_group[""]
    device: dict[str, str] = {}
    for one in reversed(whole.ops):
        readers = (device[reader] for name in one.outputs for reader in whole.consumers[name])
        chosen = of_group.get(one.colocation_group) or of_layer.get(layer(one)) or next(readers, "")
        device[one.name] = chosen or f"D{num_devices - 1}"
    return device


@pytest.mark.parametrize("name", ["resnet", "regularized", "lstm", "tied", "float16"])
@pytest.mark.parametrize("recompute", [(), None], ids=["keep", "recompute"])
def test_traced_models_can_be_cut(name: str, recompute: tuple[int, ...] | None) -> None:
    step = traced(name)
    placement = by_layers(step.graph, 3)
    execution = Execution(
        placement=placement,
        stage_devices=("D0", "D1", "D2"),
        num_microbatches=4,
        schedule="1f1b",
        recompute=range(3) if recompute is None else recompute,
    )
    programs = stage_programs(step, execution, results=("loss", "y_pred", "gradients"))
    check(step.graph, programs, seed=step.seed)
    assert programs.stages == ("D0", "D1", "D2")
    writers = [one for one in step.graph.ops if one.phase is Phase.FORWARD and one.type == "AssignVariableOp"]
    assert {state.variable for state in programs.states} == {name for one in writers for name in one.variables}
    assert bool(programs.states) == (name in ("resnet", "regularized"))
