"""What ops take for themselves on a CPU, alone and together with others of their kind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from graphs import topology

from cost_models.scratch import Kernels
from cost_models.specs import TensorSpec
from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import Op, OpGraph, Phase, Tensor
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.model.kernel_memory import scratch_of_ops, sizes_of_tensors
from partitioner.planner.simulate.unpipelined import simulate

IMAGES, FILTERS, OUTPUTS = (8, 28, 28, 16), (3, 3, 16, 32), (8, 28, 28, 32)
COLUMNS_BYTES = 56 * 4 * 112_896  # as counted in `test_scratch.py`
EIGEN = Kernels(onednn=False, intra_op_threads=4)


@pytest.fixture
def convolution() -> CostedGraph:
    """A convolution and both of its gradients."""
    shapes = {"x": IMAGES, "w": FILTERS, "y": OUTPUTS, "dy": OUTPUTS, "dw": FILTERS, "dx": IMAGES, "sizes": (4,)}
    given = {"data_format": "NHWC"}
    back = {"phase": Phase.BACKWARD, "differentiates": "y", "attributes": given}
    graph = OpGraph(
        name="convolution",
        batch_size=8,
        training=True,
        ops=(
            *(Op(name=name, type="Placeholder", outputs=(f"{name}:0",)) for name in ("x", "w", "dy", "sizes")),
            Op(name="y", type="Conv2D", inputs=("x:0", "w:0"), outputs=("y:0",), attributes=given),
            Op(name="dw", type="Conv2DBackpropFilter", inputs=("x:0", "sizes:0", "dy:0"), outputs=("dw:0",), **back),
            Op(name="dx", type="Conv2DBackpropInput", inputs=("sizes:0", "w:0", "dy:0"), outputs=("dx:0",), **back),
        ),
        tensors=tuple(
            Tensor(name=f"{name}:0", producer=name, spec=TensorSpec(shape=shape, dtype="float32"))
            for name, shape in shapes.items()
        ),
    )
    return cost_ops(graph, topology(1), kernels=EIGEN)


def test_gradients_that_may_run_at_once_take_their_columns_at_once(convolution: CostedGraph) -> None:
    assert scratch_of_ops(convolution, "CPU") == {"dw": COLUMNS_BYTES, "dx": COLUMNS_BYTES}
    parallel = replace(convolution, kernels=replace(EIGEN, inter_op_threads=2))
    assert scratch_of_ops(parallel, "CPU") == {"dw": 2 * COLUMNS_BYTES, "dx": 2 * COLUMNS_BYTES}
    # A GPU of unknown age copies the filter and all images.
    copies_bytes = 4 * (math.prod(FILTERS) + math.prod(IMAGES) + math.prod(OUTPUTS))
    assert scratch_of_ops(parallel, "GPU") == dict.fromkeys(("y", "dw", "dx"), copies_bytes)


def test_scratchpads_of_onednn_count_one_by_one(convolution: CostedGraph) -> None:
    onednn = replace(convolution, kernels=Kernels(inter_op_threads=2))
    assert scratch_of_ops(onednn, "CPU") == dict.fromkeys(("y", "dw", "dx"), 10 * 1024)


def test_tensors_have_their_own_size(convolution: CostedGraph) -> None:
    assert sizes_of_tensors(convolution, "CPU", workspaces=True)["y:0"] == 4 * 8 * 28 * 28 * 32


def test_columns_are_counted_on_the_device_of_their_gradient_in_a_step_in_one_piece(convolution: CostedGraph) -> None:
    costed = cost_ops(convolution.graph, topology(2, kind="CPU"), kernels=EIGEN)
    first, second = simulate(costed, {op.name: int(op.name == "dw") for op in costed.graph.ops}).peak.values()
    images, filters, outputs = (4 * math.prod(shape) for shape in (IMAGES, FILTERS, OUTPUTS))
    sizes = 64  # four numbers, in an allocator's smallest step
    assert second.total_bytes == images + sizes + outputs + filters + COLUMNS_BYTES
    assert second.largest[0].size_bytes == filters + COLUMNS_BYTES
    # The convolution may come last, and its images are held until then.
    assert first.total_bytes == images + sizes + filters + outputs + images + COLUMNS_BYTES
