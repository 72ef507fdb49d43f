"""What the kernel registry says of ops on GPUs, and what plans for GPUs say that it does not."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import tensorflow as tf
from asking import asked

import partitioner
from partitioner.gpu_kernels import endpoints, has_gpu_kernel, is_host_only, knows_gpu_kernels, op_signature
from tests import models

needs_list = pytest.mark.skipif(not knows_gpu_kernels(), reason="this TensorFlow is built without GPUs")


@pytest.mark.skipif((platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="other wheels may list none")
def test_the_wheel_for_x86_64_lists_kernels_of_gpus() -> None:
    """Else the tests of this file and the lint would be left out without a word."""
    assert knows_gpu_kernels()


def node(op: str, **attributes: Any) -> Any:
    made = tf.compat.v1.NodeDef(name="n", op=op)
    for name, value in attributes.items():
        if isinstance(value, list):
            made.attr[name].list.CopyFrom(tf.compat.v1.AttrValue.ListValue(type=[t.as_datatype_enum for t in value]))
        else:
            made.attr[name].type = value.as_datatype_enum
    return made


@needs_list
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node("MatMul", T=tf.float32), False),
        (node("AddV2", T=tf.int32), False),  # on the host, but by a kernel of the GPU
        (node("Const", dtype=tf.string), True),
        (node("Const", dtype=tf.float32), False),
        (node("PrintV2"), True),
        (node("TensorScatterUpdate", T=tf.bool, Tindices=tf.int32), True),
        (node("While"), False),
    ],
)
def test_what_no_gpu_can_run(made: Any, expected: bool) -> None:
    assert is_host_only(made) is expected
    assert has_gpu_kernel(made) is not expected


def on_host(made: Any) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    inputs, outputs = endpoints(made, op_signature(made.op))
    return inputs.on_host, outputs.on_host


@needs_list
def test_memory_follows_the_kernel_the_dtype_and_the_kind_of_call() -> None:
    assert on_host(node("MatMul", T=tf.float32)) == ((False, False), (False,))
    assert on_host(node("AddV2", T=tf.int32)) == ((True, True), (True,))
    assert on_host(node("StridedSlice", T=tf.float32, Index=tf.int32)) == ((False, True, True, True), (False,))
    called = {"Tin": [tf.float32, tf.int32, tf.resource], "Tout": [tf.int32]}
    assert on_host(node("PartitionedCall", **called)) == ((False, True, True), (True,))
    # A call of a stage has a kernel, which says nothing of its arguments.
    remote = node("RemoteCall", **called)
    assert on_host(remote) == ((True, False, False, True), (False,))
    remote.attr["_input_hostmem"].list.i.extend([2])
    remote.attr["_output_hostmem"].list.i.extend([0])
    assert on_host(remote) == ((True, False, True, True), (True,))


@needs_list
def test_a_plan_for_absent_gpus_says_that_cudnn_would_run_a_recurrent_layer() -> None:
    model = models.MODELS["lstm"]()
    notes = {
        device: partitioner.plan(model, **asked(devices=device, batch_size=8, time_limit=5.0)).notes
        for device in ("GPU:0", "CPU:1")
    }
    assert ["cuDNN" in " ".join(of_device) for of_device in notes.values()] == [True, False]
