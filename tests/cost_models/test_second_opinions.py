"""What TensorFlow itself says ops cost: its profiler's FLOPs, and its virtual cluster's seconds and peak bytes.

Both are private to TensorFlow, so nothing but these tests may know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import device_properties_pb2 as properties
from tensorflow.python.framework import meta_graph, ops
from tensorflow.python.grappler.cluster import Cluster
from tensorflow.python.grappler.item import Item

from cost_models.catalogue import device_named, link_named
from cost_models.flops import op_cost
from cost_models.hardware import Device
from cost_models.roofline import op_seconds
from cost_models.specs import OpSpec, TensorSpec
from cost_models.topology import Topology, TopologyDevice
from partitioner.capture.lower.attributes import readable_attributes
from partitioner.ir.op_graph import Op, OpGraph, Tensor
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.simulate.unpipelined import simulate

v1 = tf.compat.v1


def array(*shape: int, dtype: Any = tf.float32) -> Any:
    return v1.placeholder(dtype, shape)


def variable(*shape: int) -> Any:
    return v1.get_variable("variable", shape, use_resource=False)


def elementwise(op_type: str) -> Callable[[], Any]:
    """An op of one or two arguments, on matrices."""

    def build() -> Any:
        arguments = getattr(tf.raw_ops, op_type).__signature__.parameters
        return getattr(tf.raw_ops, op_type)(**{name: array(40, 50) for name in arguments if name != "name"})

    return build


def image() -> Any:
    return array(2, 12, 12, 4)


def kernel(*more: int) -> Any:
    return array(3, 3, 4, *more)


def pooled(kind: str) -> Any:
    return getattr(tf.raw_ops, kind)(**_POOL, **{"value" if kind == "AvgPool" else "input": image()})


_POOL = {"ksize": (1, 3, 3, 1), "strides": (1, 2, 2, 1), "padding": "SAME"}
_STRIDES = {"strides": (1, 2, 2, 1), "padding": "SAME"}
_SIZES = ("Reciprocal", "Square", "Rsqrt", "Log", "Neg", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Pow", "Add")

# A small graph for every op type that the profiler knows.
GRAPHS: Mapping[str, Callable[[], Any]] = {
    **{name: elementwise(name) for name in _SIZES},
    **{name: elementwise(name) for name in ("AddV2", "RsqrtGrad", "SquaredDifference")},
    **{name: elementwise(name) for name in ("Greater", "GreaterEqual", "Less", "LessEqual")},
    "Equal": lambda: tf.raw_ops.Equal(x=array(40, 50), y=array(40, 50)),
    "NotEqual": lambda: tf.raw_ops.NotEqual(x=array(40, 50), y=array(40, 50)),
    "AssignAdd": lambda: v1.assign_add(variable(40, 50), array(40, 50)),
    "AssignSub": lambda: v1.assign_sub(variable(40, 50), array(40, 50)),
    "L2Loss": lambda: tf.nn.l2_loss(array(40, 50)),
    "Softmax": lambda: tf.nn.softmax(array(40, 50)),
    "Mean": lambda: tf.reduce_mean(array(40, 50), axis=1),
    "Sum": lambda: tf.reduce_sum(array(40, 50), axis=1),
    "ArgMax": lambda: tf.argmax(array(40, 50), axis=1),
    "ArgMin": lambda: tf.argmin(array(40, 50), axis=1),
    "AddN": lambda: tf.add_n([array(40, 50) for _ in range(4)]),
    "BiasAdd": lambda: tf.nn.bias_add(array(40, 50), array(50)),
    "BiasAddGrad": lambda: tf.raw_ops.BiasAddGrad(out_backprop=array(40, 50)),
    "MatMul": lambda: tf.matmul(array(50, 40), array(60, 50), transpose_a=True, transpose_b=True),
    "BatchMatMul": lambda: tf.raw_ops.BatchMatMul(x=array(3, 40, 50), y=array(3, 50, 60)),
    "BatchMatMulV2": lambda: tf.raw_ops.BatchMatMulV2(x=array(3, 40, 50), y=array(50, 60)),
    "BatchMatMulV3": lambda: tf.raw_ops.BatchMatMulV3(x=array(3, 40, 50), y=array(3, 50, 60), Tout=tf.float32),
    "Conv2D": lambda: tf.nn.conv2d(image(), kernel(8), 2, "VALID"),
    "Conv2DBackpropInput": lambda: tf.raw_ops.Conv2DBackpropInput(
        input_sizes=(2, 12, 12, 4), filter=kernel(8), out_backprop=array(2, 6, 6, 8), **_STRIDES
    ),
    "Conv2DBackpropFilter": lambda: tf.raw_ops.Conv2DBackpropFilter(
        input=image(), filter_sizes=(3, 3, 4, 8), out_backprop=array(2, 6, 6, 8), **_STRIDES
    ),
    "Conv3D": lambda: tf.nn.conv3d(array(1, 8, 8, 8, 2), array(3, 3, 3, 2, 5), (1, 1, 1, 1, 1), "SAME"),
    "DepthwiseConv2dNative": lambda: tf.nn.depthwise_conv2d(image(), kernel(2), (1, 2, 2, 1), "SAME"),
    "Dilation2D": lambda: tf.raw_ops.Dilation2D(input=image(), filter=kernel(), rates=(1, 1, 1, 1), **_STRIDES),
    "AvgPool": lambda: pooled("AvgPool"),
    "MaxPool": lambda: pooled("MaxPool"),
    "AvgPoolGrad": lambda: tf.raw_ops.AvgPoolGrad(orig_input_shape=(2, 12, 12, 4), grad=array(2, 6, 6, 4), **_POOL),
    "MaxPoolGrad": lambda: tf.raw_ops.MaxPoolGrad(
        orig_input=image(), orig_output=array(2, 6, 6, 4), grad=array(2, 6, 6, 4), **_POOL
    ),
}

# Where the profiler counts otherwise, for 40 x 50 elements: ours, theirs, and why ours is right. It counts a division
# or a logarithm as one operation, as if it took no longer than an addition. No processor does that: an A100 starts 64
# additions of float32 per clock and multiprocessor, and 16 reciprocals, roots, logarithms or exponentials (NVIDIA,
# CUDA C++ Programming Guide, "Arithmetic Instructions"), each of which is one step of several. Ours are McMahon's
# weights, of which `formulas_elementwise` tells.
OTHERWISE = {
    "Reciprocal": (4 * 2000, 1 * 2000),  # a division
    "RealDiv": (4 * 2000, 1 * 2000),  # a division
    "Log": (8 * 2000, 1 * 2000),  # a logarithm
    "Rsqrt": (8 * 2000, 2 * 2000),  # both count two operations: a root (4) and a division (4)
    "Pow": (17 * 2000, 1 * 2000),  # exp(y * log(x)): 8 + 1 + 8
    # Both find the largest (1), subtract it (1), exponentiate (8, theirs 1), sum (1) and divide (4, theirs 1).
    "Softmax": (15 * 2000, 5 * 2000),
    # n squares, n - 1 additions, one halving: 2 n. The profiler counts 3 n - 1, and says in a comment that 2 n do.
    "L2Loss": (2 * 2000, 3 * 2000 - 1),
}


def known_to_the_profiler() -> set[str]:
    return {key.split(",")[0] for key in ops._stats_registry.list() if key.endswith(",flops")}


def spec_of(tensor: Any) -> TensorSpec:
    return TensorSpec(shape=tuple(tensor.shape), dtype=tensor.dtype.base_dtype.name)


def op_spec(op: Any) -> OpSpec:
    return OpSpec(
        type=op.type,
        inputs=tuple(map(spec_of, op.inputs)),
        outputs=tuple(map(spec_of, op.outputs)),
        attributes=readable_attributes(op.node_def),
    )


def both_counts(op_type: str, build: Callable[[], Any]) -> tuple[int, int]:
    """FLOPs of the one op of this type in a graph: ours and the profiler's."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    (op,) = (op for op in graph.get_operations() if op.type == op_type)
    theirs = ops.get_stats_for_node_def(graph, op.node_def, "flops").value
    return op_cost(op_spec(op)).flops, int(theirs)


def test_every_op_type_that_the_profiler_knows_is_compared() -> None:
    assert known_to_the_profiler() - GRAPHS.keys() == set()


@pytest.mark.parametrize("op_type", sorted(GRAPHS.keys() - OTHERWISE.keys()))
def test_the_profiler_counts_the_same_flops(op_type: str) -> None:
    ours, theirs = both_counts(op_type, GRAPHS[op_type])
    assert theirs > 0
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("op_type", sorted(OTHERWISE))
def test_where_the_profiler_counts_otherwise(op_type: str) -> None:
    assert both_counts(op_type, GRAPHS[op_type]) == OTHERWISE[op_type]


def test_a_batched_product_of_a_transposed_matrix() -> None:
    """The profiler looks for `transpose_a`, but a batched product has `adj_x`: it takes the rows for the depth."""
    ours, theirs = both_counts(
        "BatchMatMulV2", lambda: tf.raw_ops.BatchMatMulV2(x=array(3, 50, 40), y=array(3, 50, 60), adj_x=True)
    )
    assert ours == 3 * 40 * 60 * (2 * 50)
    assert theirs == 3 * 40 * 60 * (2 * 40)


def test_the_gradient_of_a_convolution_without_padding() -> None:
    """A result of 10 x 10 has as many windows; the profiler takes one for each of the 12 x 12 pixels of the input."""
    ours, theirs = both_counts(
        "Conv2DBackpropInput",
        lambda: tf.raw_ops.Conv2DBackpropInput(
            input_sizes=(2, 12, 12, 4),
            filter=kernel(8),
            out_backprop=array(2, 10, 10, 8),
            strides=(1, 1, 1, 1),
            padding="VALID",
        ),
    )
    assert ours == 2 * (2 * 10 * 10 * 8) * (3 * 3 * 4)
    assert theirs == 2 * (2 * 12 * 12 * 8) * (3 * 3 * 4)


# What TensorFlow's cost estimator makes of the properties below: two operations per clock of 64 units in each of 108
# multiprocessors. It knows no tensor cores.
A100 = Device(
    name="a100",
    title="A100 without tensor cores",
    peak_flops={"float32": 2 * 64 * 108 * 1.41e9},
    memory_bytes=80 * 10**9,
    memory_bandwidth_bytes_per_second=2039e9,
    launch_overhead_seconds=0.0,
    source="a test",
    date="2025-01",
)
NAME = "/job:localhost/replica:0/task:0/device:GPU:0"
_ROUNDING_SECONDS = 1e-6


def cluster() -> Cluster:
    declared = properties.DeviceProperties(
        type="GPU",
        vendor="NVIDIA",
        model="A100",
        environment={"architecture": "8.0"},
        frequency=1410,  # MHz
        num_cores=108,
        memory_size=A100.memory_bytes,
        bandwidth=int(A100.memory_bandwidth_bytes_per_second / 1000),  # KB/s
    )
    return Cluster(devices=[properties.NamedDevice(name=NAME, properties=declared)])


def item(graph: tf.Graph, target: str) -> Item:
    meta = meta_graph.create_meta_graph_def(graph=graph)
    meta.collection_def["train_op"].node_list.value.append(target)
    return Item(meta)


def large_ops() -> Any:
    product = tf.nn.bias_add(tf.matmul(array(8192, 4096), array(4096, 2048)), array(2048))
    added = tf.nn.relu(product) + tf.abs(product) * product
    source, weights = array(64, 56, 56, 128), array(3, 3, 128, 128)
    convolved = tf.nn.conv2d(source, weights, 1, "SAME")
    return tf.group(added, *v1.gradients(tf.nn.bias_add(convolved, array(128)), [source, weights]), name="all")


COMPARED = {"MatMul", "BiasAdd", "Relu", "Abs", "Mul", "AddV2", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"}


def test_the_virtual_cluster_has_the_same_roofline() -> None:
    """Its compute and memory times are ours within 2 % and the microsecond it rounds to.

    The seconds of an op it takes to be their sum, as if nothing were computed while bytes move; the roofline takes the
    larger. So its figure is between one and two of ours.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.device(NAME):
        large_ops()
    costs, _, _ = cluster().MeasureCosts(item(graph, "all"))
    seen = set()
    for theirs in costs:
        op = graph.get_operation_by_name(theirs.node)
        if op.type not in COMPARED:
            continue
        seen.add(op.type)
        cost = op_cost(op_spec(op))
        compute = cost.flops / A100.peak_flops["float32"]
        memory = cost.moved_bytes / A100.memory_bandwidth_bytes_per_second
        assert theirs.compute_time / 1e9 == pytest.approx(compute, rel=0.02, abs=_ROUNDING_SECONDS), op.type
        assert theirs.memory_time / 1e9 == pytest.approx(memory, rel=0.02, abs=_ROUNDING_SECONDS), op.type
        seconds = op_seconds(cost, A100, "float32")
        assert 0.98 * seconds - _ROUNDING_SECONDS <= theirs.compute_cost / 1e9 <= 2.04 * seconds + _ROUNDING_SECONDS
    # The forward convolution's result is needed by nobody.
    assert seen == COMPARED - {"Conv2D"}


@pytest.mark.parametrize("op_type", ["Log", "RealDiv", "Reciprocal", "Rsqrt"])
def test_the_virtual_cluster_sides_with_us_against_the_profiler(op_type: str) -> None:
    """TensorFlow's newer estimator, which its optimizers ask, takes these for many additions too."""
    graph, elements = tf.Graph(), 2**28
    with graph.as_default(), tf.device(NAME):
        build = getattr(tf.raw_ops, op_type)
        made = build(**{name: array(elements) for name in build.__signature__.parameters if name != "name"})
        tf.group(made, name="all")
    costs, _, _ = cluster().MeasureCosts(item(graph, "all"))
    (seconds,) = (cost.compute_time / 1e9 for cost in costs if cost.op.op == op_type)
    per_element = seconds * A100.peak_flops["float32"] / elements
    _, profiler = OTHERWISE[op_type]
    assert per_element > 2 * profiler / 2000


def op_graph(graph: tf.Graph) -> OpGraph:
    made = graph.get_operations()
    return OpGraph(
        name="graph",
        batch_size=1,
        training=False,
        ops=tuple(
            Op(
                name=op.name,
                type=op.type,
                inputs=tuple(tensor.name for tensor in op.inputs),
                outputs=tuple(tensor.name for tensor in op.outputs),
                attributes=readable_attributes(op.node_def),
            )
            for op in made
        ),
        tensors=tuple(
            Tensor(name=tensor.name, producer=op.name, spec=spec_of(tensor)) for op in made for tensor in op.outputs
        ),
    )


def test_the_virtual_cluster_needs_as_much_memory() -> None:
    """A chain of four products: five factors are there from the start, and the first product is made.

    The virtual cluster lets go of what an op read a nanosecond after the op has ended, when the next op has its result
    already, so it counts one more buffer of the same size.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.device(NAME):
        value = array(1024, 1024)
        for _ in range(4):
            value = tf.matmul(value, array(1024, 1024))
        tf.identity(value, name="all")
    ((theirs, live),) = cluster().DeterminePeakMemoryUsage(item(graph, "all")).values()
    placed = TopologyDevice(name=NAME, device=device_named("a100-80gb"), memory_bytes=A100.memory_bytes)
    costed = cost_ops(op_graph(graph), Topology.uniform([placed], link_named("nvlink3")))
    ours = simulate(costed, dict.fromkeys(costed.graph.op, 0)).peak[NAME].total_bytes
    assert ours == 6 * 4 * 1024 * 1024
    newest = max(start for _, _, _, start, _ in live)
    gone = sum(size for _, _, size, _, end in live if end == newest + 1 and size)
    assert gone == 2 * 4 * 1024 * 1024  # what the first product read
    assert theirs - gone <= ours <= theirs
