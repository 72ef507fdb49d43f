"""The op graph: what it refuses, all at once, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import pytest
from graphs import Builder, random_graphs
from hypothesis import given
from hypothesis import strategies as st

from cost_models.specs import TensorSpec
from partitioner.ir.op_graph import Layer, Op, OpGraph, Phase, Tensor, Variable, VariableKind

SPEC = TensorSpec(shape=(2, 3), dtype="float32")
WEIGHT = Variable(name="w", spec=SPEC, kind=VariableKind.PARAMETER)


def graph(**changes) -> OpGraph:
    """x -> y (layer A, weight w) -> z (layer B, reads y twice)."""
    made = OpGraph(
        name="g",
        batch_size=2,
        training=False,
        ops=(
            Op(name="x", type="Placeholder", outputs=("x:0",)),
            Op(name="y", type="MatMul", layer="A", inputs=("x:0",), outputs=("y:0", "y:1"), variables=("w",)),
            Op(
                name="z",
                type="Add",
                layer="B",
                inputs=("y:1", "y:1"),
                outputs=("z:0",),
                control_inputs=("x",),
            ),
        ),
        tensors=tuple(Tensor(name=name, producer=name[0], spec=SPEC) for name in ("x:0", "y:0", "y:1", "z:0")),
        variables=(WEIGHT,),
    )
    return replace(made, **changes)


def test_every_violation_is_listed() -> None:
    with pytest.raises(ValueError, match="the op graph 'g' is malformed") as raised:
        OpGraph(
            name="g",
            batch_size=0,
            training=False,
            ops=(
                Op(name="a", type="Add", inputs=("b:0", "gone:0"), outputs=("c:0",), control_inputs=("b",)),
                Op(name="b", type="Add", outputs=("b:0", "made:0"), variables=("v",)),
                Op(name="b", type="Add"),
            ),
            tensors=(
                Tensor(name="b:0", producer="b", spec=SPEC),
                Tensor(name="c:0", producer="b", spec=SPEC),
                Tensor(name="lost:0", producer="b", spec=SPEC),
                Tensor(name="lost:0", producer="b", spec=SPEC),
            ),
            variables=(WEIGHT, WEIGHT),
            outputs=("nothing:0",),
        )
    assert str(raised.value).splitlines() == [
        "the op graph 'g' is malformed (12 problems):",
        "  batch_size is 0, expected at least 1",
        "  two tensors share a name",
        "  two variables share a name",
        "  op 'a' reads 'b:0' before its producer 'b'",
        "  op 'a' reads the unknown tensor 'gone:0'",
        "  op 'a' waits for 'b', which does not come before it",
        "  tensor 'c:0' names 'b' as its producer, not 'a'",
        "  op 'b' uses the unknown variable 'v'",
        "  op 'b' produces the unknown tensor 'made:0'",
        "  two ops are named 'b'",
        "  tensor 'lost:0' has no producer among the ops",
        "  the graph names the unknown tensor 'nothing:0' as input or output",
    ]


def test_look_ups() -> None:
    made = graph()
    assert made.op["y"].type == "MatMul"
    assert made.tensor["y:0"].producer == "y"
    assert made.variable["w"] is WEIGHT
    assert made.consumers == {"x:0": ("y",), "y:0": (), "y:1": ("z",), "z:0": ()}
    assert made.num_parameters == 6


def test_networkx_has_data_and_control_edges() -> None:
    networkx_graph = graph().to_networkx()
    assert dict(networkx_graph.edges) == {
        ("x", "y"): {"tensors": ("x:0",)},
        ("x", "z"): {"tensors": ()},
        ("y", "z"): {"tensors": ("y:1",)},
    }
    assert networkx_graph.nodes["y"]["op"].layer == "A"


def renamed() -> OpGraph:
    text = {"x": "in", "y": "A_1/MatMul", "z": "B_1/Add", "w": "kernel"}

    def tensor(name: str) -> str:
        return text[name[0]] + name[1:]

    made = graph()
    return replace(
        made,
        name="other",
        batch_size=4,
        ops=tuple(
            replace(
                op,
                name=text[op.name],
                layer=op.layer and f"{op.layer}_1",
                inputs=tuple(map(tensor, op.inputs)),
                outputs=tuple(map(tensor, op.outputs)),
                control_inputs=tuple(text[name] for name in op.control_inputs),
                variables=tuple(text[name] for name in op.variables),
            )
            for op in made.ops
        ),
        tensors=tuple(replace(t, name=tensor(t.name), producer=text[t.producer]) for t in made.tensors),
        variables=(replace(WEIGHT, name="kernel"),),
    )


def with_loss() -> OpGraph:
    made = graph()
    loss = Op(name="loss", type="Mean", inputs=("z:0",), outputs=("loss:0",))
    back = Op(name="back", type="Mul", layer="B", phase=Phase.BACKWARD, inputs=("loss:0",))
    return replace(
        made,
        training=True,
        ops=(*made.ops, loss, back),
        tensors=(*made.tensors, Tensor(name="loss:0", producer="loss", spec=SPEC)),
    )


def test_the_fingerprint_survives_names_batch_and_training() -> None:
    assert graph().fingerprint == renamed().fingerprint == with_loss().fingerprint


@pytest.mark.parametrize("what", ["type", "wiring", "variable", "order"])
def test_the_fingerprint_tells_models_apart(what: str) -> None:
    made = graph()
    x, y, z = made.ops
    changed = {
        "type": {"ops": (x, y, replace(z, type="Mul"))},
        "wiring": {"ops": (x, y, replace(z, inputs=("y:0", "y:1")))},
        "variable": {"variables": (replace(WEIGHT, spec=TensorSpec(shape=(3, 2), dtype="float32")),)},
        "order": {"ops": (x, y, replace(z, inputs=("x:0", "y:1")))},
    }[what]
    assert replace(made, **changed).fingerprint != made.fingerprint


def recurrent(kernels: Sequence[str], shape: tuple[int, ...] = (2, 2)) -> OpGraph:
    """A dense layer before and after an LSTM, which some ops compute one after the other; its weight is the first's."""
    names = ["before", *(f"lstm{number}" for number in range(len(kernels))), "after"]
    ops = tuple(
        Op(
            name=name,
            type="MatMul" if name in ("before", "after") else kernels[number - 1],
            layer={"before": "a", "after": "b"}.get(name, "lstm/cell" if number == 1 else "lstm"),
            inputs=(f"{names[number - 1]}:0",) if number else (),
            outputs=(f"{name}:0",),
            variables=("w",) if number == 1 else (),
        )
        for number, name in enumerate(names)
    )
    return OpGraph(
        name="g",
        batch_size=1,
        training=False,
        ops=ops,
        tensors=tuple(Tensor(name=f"{name}:0", producer=name, spec=SPEC) for name in names),
        variables=(Variable(name="w", spec=TensorSpec(shape=shape, dtype="float32"), kind=VariableKind.PARAMETER),),
        layers=(
            Layer(path="a", class_name="Dense"),
            Layer(path="lstm/cell", class_name="LSTMCell"),
            Layer(path="lstm", class_name="LSTM"),
            Layer(path="b", class_name="Dense"),
        ),
    )


def test_a_recurrent_layer_is_the_same_whichever_kernels_compute_it() -> None:
    """Bug: where there is a GPU, Keras makes cuDNN's op of an LSTM, and the plan made without one was refused."""
    generic, cudnn = recurrent(["ReadVariableOp", "While", "Transpose"]), recurrent(["CudnnRNNV3"])
    assert generic.fingerprint == cudnn.fingerprint
    assert generic.op_fingerprint != cudnn.op_fingerprint
    assert recurrent(["CudnnRNNV3"], shape=(2, 4)).fingerprint != cudnn.fingerprint
    without = replace(cudnn, layers=(), ops=tuple(replace(op, layer=op.layer and "x") for op in cudnn.ops))
    assert without.fingerprint == without.op_fingerprint


def test_ops_that_look_alike_share_what_formulas_see() -> None:
    made = graph()
    add = made.ops[2]
    alike, scaled = (replace(add, name=name, outputs=(f"{name}:0",)) for name in "uv")
    more = tuple(Tensor(name=f"{name}:0", producer=name, spec=SPEC) for name in "uv")
    made = replace(
        made, ops=(*made.ops, alike, replace(scaled, attributes={"alpha": 2.0})), tensors=(*made.tensors, *more)
    )
    first, product, *sums = made.specs
    assert [spec.type for spec in made.specs] == ["Placeholder", "MatMul", "Add", "Add", "Add"]
    assert [tensor.dtype for tensor in product.inputs] == ["resource", "float32"]
    assert sums[0] is sums[1]
    assert sums[2].attributes == {"alpha": 2.0}
    asked = []
    assert made.of_specs(lambda spec: asked.append(spec.type) or len(spec.inputs)) == (0, 2, 2, 2, 2)
    assert asked == ["Placeholder", "MatMul", "Add", "Add"]
    assert first.outputs == (SPEC,)


@given(random_graphs(), st.data())
def test_what_depends_on_ops_is_what_edges_lead_to(builder: Builder, data: st.DataObject) -> None:
    made = builder.graph()
    edges = ((made.tensor[name].producer, op.name) for op in made.ops for name in op.inputs)
    flow = nx.DiGraph(edges)
    flow.add_nodes_from(made.op)
    roots = data.draw(st.sets(st.sampled_from(list(made.op)), max_size=3))
    assert made.depending_on(roots) == roots.union(*(nx.descendants(flow, root) for root in roots))
    assert made.depending_on(roots, but={op.type for op in made.ops}) == roots
