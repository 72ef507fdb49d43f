"""What is handed to the cost formulas, and what comes back per device."""

from __future__ import annotations

import re

import pytest
from graphs import Builder, topology

from cost_models.catalogue import link_named
from cost_models.communication import transfer_seconds
from cost_models.measured import MeasuredDevice, MeasuredOp, signature
from cost_models.specs import OpSpec, TensorSpec
from partitioner.ir.op_graph import Op, OpGraph, Tensor, Variable, VariableKind
from partitioner.planner.model.costs import GraphCosts, cost_ops

MATRIX = TensorSpec(shape=(8, 16), dtype="float32")
SUM = TensorSpec(shape=(8, 32), dtype="float32")


def matmul_graph(op_type: str = "MatMul") -> OpGraph:
    """x (8 x 16) times w (16 x 32), which is read from a variable."""
    return OpGraph(
        name="matmul",
        batch_size=8,
        training=False,
        ops=(
            Op(name="x", type="Placeholder", outputs=("x:0",)),
            Op(name="read", type="ReadVariableOp", outputs=("w:0",), variables=("w",)),
            Op(name="y", type=op_type, inputs=("x:0", "w:0"), outputs=("y:0",)),
        ),
        tensors=(
            Tensor(name="x:0", producer="x", spec=MATRIX),
            Tensor(name="w:0", producer="read", spec=TensorSpec(shape=(16, 32), dtype="float32")),
            Tensor(name="y:0", producer="y", spec=TensorSpec(shape=(8, 32), dtype="float32")),
        ),
        variables=(Variable(name="w", spec=TensorSpec(shape=(16, 32), dtype="float32"), kind=VariableKind.PARAMETER),),
    )


def test_a_matmul_costs_two_flops_per_product() -> None:
    costed = cost_ops(matmul_graph(), topology(2, speeds=[1.0, 2.0]))
    assert [cost.flops for cost in costed.costs] == [0, 0, 2 * 8 * 16 * 32]
    assert costed.costs[2].moved_bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert costed.seconds == ((0.0, 0.0), (0.0, 0.0), (8192 / 1024, 8192 / 2048))


def test_adding_to_a_running_total_costs_an_addition() -> None:
    machines = topology(2, speeds=[1.0, 2.0])
    costed = GraphCosts(matmul_graph()).on(machines, sums=("y:0",))
    assert costed.seconds[2] == ((8192 + 256) / 1024, (8192 + 256) / 2048)

    def known(seconds: float) -> MeasuredOp:
        return MeasuredOp(
            type="AddV2", dtype="float32", flops=256, moved_bytes=3072, seconds=seconds, num_runs=1, crowded_seconds=4.0
        )

    add = OpSpec(type="AddV2", inputs=(SUM, SUM), outputs=(SUM,))
    name = machines.devices[0].device.name
    device = MeasuredDevice(
        type="CPU", title="", hardware=name, overhead_seconds=0.5, ops={signature(add): known(3.0)}, crowd=2
    )
    alone = GraphCosts(matmul_graph()).on(machines, {0: device})
    measured = GraphCosts(matmul_graph()).on(machines, {0: device}, sums=("y:0",))
    assert measured.seconds[2][0] - alone.seconds[2][0] == pytest.approx(3.0 + 0.5)
    assert measured.contended.seconds[2][0] - alone.contended.seconds[2][0] == pytest.approx(4.0 + 0.5)


def test_a_step_without_kernels_to_fuse_has_other_numbers_of_rows() -> None:
    """It was an assertion that failed."""
    whole = GraphCosts(matmul_graph(), {"y"})
    assert whole.fusion.groups == ()
    assert GraphCosts(matmul_graph(), {"y"}, whole).fusion.groups == ()


def test_the_handle_of_a_variable_comes_first_as_in_tensorflow() -> None:
    graph = matmul_graph()
    spec = graph.specs[[op.name for op in graph.ops].index("read")]
    assert [tensor.dtype for tensor in spec.inputs] == ["resource"]
    assert spec.outputs == (TensorSpec(shape=(16, 32), dtype="float32"),)


def test_an_unknown_op_is_reported_and_not_free() -> None:
    costed = cost_ops(matmul_graph("FrobnicateV9"), topology(1))
    assert costed.uncosted_ops == {"FrobnicateV9": 1}
    assert costed.uncosted_shares == {"FrobnicateV9": 1.0}  # nothing else moves bytes
    assert costed.costs[2].moved_bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)


def test_an_op_on_a_tensor_of_unknown_rank_is_costed_by_bytes_and_reported() -> None:
    """Fixed bug: planning ended with a bare ValueError where a Python function fed a MatMul."""
    import keras
    from keras import layers

    import partitioner

    class Product(layers.Layer):
        def build(self, shape):
            self.matrix = self.add_weight(shape=(8, 4))

        def call(self, x):
            import tensorflow as tf

            doubled = tf.py_function(lambda value: 2.0 * value, [x], tf.float32)
            return tf.ensure_shape(tf.matmul(doubled, self.matrix), [None, 4])

    inputs = keras.Input((8,))
    inference = partitioner.Step(training=False)
    model = keras.Model(inputs, Product()(inputs))
    plan = partitioner.plan(model, devices=["CPU:1"], step=inference, strategy="single")
    assert any(re.fullmatch(r"BatchMatMulV2 x1 \(\d+\.\d % of bytes\)", line) for line in plan.uncosted_ops)


def test_an_op_that_no_gpu_can_run_takes_its_copies_to_the_host_and_back() -> None:
    """256 bytes there and 256 back over PCIe; the second such op reads what lies on the host already."""
    made = Builder()
    made.add("a", 1.0)
    made.add("first", 0.0, "a", host_only=True)
    made.add("second", 0.0, "first", host_only=True)
    made.add("b", 1.0, "second")
    copy = transfer_seconds(256, link_named("pcie4"))
    on_gpu, on_cpu = (made.costed(topology(1, kind=kind)).seconds for kind in ("GPU", "CPU"))
    extra = [gpu[0] - cpu[0] for gpu, cpu in zip(on_gpu, on_cpu, strict=True)]
    assert extra == pytest.approx([0.0, copy, copy, 0.0], abs=1e-9)
