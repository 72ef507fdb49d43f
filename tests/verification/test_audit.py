"""What ran where: body ops are held against their loop, calls are looked through, chance namesakes are not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from partitioner.ir.devices import DeviceName
from partitioner.verification.audit import executed_ops, hard_placement, misplaced_ops

ZERO, ONE, TWO = (f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(3))
CALL = "StatefulPartitionedCall/StatefulPartitionedCall/"


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("a/MatMul", ZERO, (1, ())),
        ("a/MatMul", ONE, (1, ("a/MatMul (MatMul): planned on CPU:0, ran on CPU:1",))),
        (CALL + "a/MatMul", ONE, (1, (f"{CALL}a/MatMul (MatMul): planned on CPU:0, ran on CPU:1",))),
        ("rnn/while/body/_7/rnn/while/MatMul", ONE, (1, ())),
        (
            "rnn/while/body/_7/a/MatMul",  # ends like a planned op, but is the loop's
            ZERO,
            (1, ("rnn/while/body/_7/a/MatMul (MatMul): planned on CPU:1, ran on CPU:0",)),
        ),
        ("a/MatMul-0-Transpose", ZERO, (0, ())),
        ("made_up", TWO, (0, ("made_up (MatMul): not in the plan, ran on CPU:2",))),
    ],
)
def test_names_of_executed_ops(name: str, device: str, expected: tuple[int, tuple[str, ...]]) -> None:
    placement = {"a/MatMul": ZERO, "rnn/while": ONE}
    assert misplaced_ops({name: ("MatMul", device)}, placement) == expected


def test_what_the_runtime_adds_does_not_count() -> None:
    assert misplaced_ops({"x/_send": ("_Send", TWO), "k": ("Const", TWO)}, {"a": ZERO}) == (0, ())


def test_a_copy_is_misplaced_where_no_stage_has_one() -> None:
    executed, copies = {"k": ("Mul", TWO)}, {"k": {ZERO, TWO}}
    assert misplaced_ops(executed, {"k": ZERO}, copies) == (1, ())
    assert misplaced_ops(executed, {"k": ZERO}, {"k": {ZERO, ONE}}) == (1, ("k (Mul): planned on CPU:0, ran on CPU:2",))
    assert misplaced_ops(executed, {"k": ZERO}, {"other": {TWO}})[1]


def test_what_hands_an_argument_to_a_branch_runs_where_the_argument_is() -> None:
    executed = {"branch/partition_arguments/2_here/_6": ("Switch", TWO)}
    assert misplaced_ops(executed, {"branch": ZERO}) == (0, ())
    assert misplaced_ops({"branch/x/_6": ("Switch", TWO)}, {"branch": ZERO})[1]
    assert misplaced_ops({"branch/partition_arguments/2_here/_6": ("Mul", TWO)}, {"branch": ZERO})[1]


def test_executed_ops_are_those_after_placement() -> None:
    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:2"):
            y = tf.matmul(x, x, name="there")
        with tf.device("CPU:1"):
            return tf.tanh(y, name="here")

    result, found = executed_ops(lambda: run(tf.eye(2)))
    assert result.shape == (2, 2)
    op_type, device = found["there"]
    assert op_type.endswith("MatMul")  # oneDNN puts its own kernel in place of TensorFlow's
    assert device == TWO
    assert found["here"] == ("Tanh", ONE)


def test_hard_placement_refuses_what_soft_placement_moves() -> None:
    @tf.function(autograph=False)
    def elsewhere(x: tf.Tensor) -> tf.Tensor:
        with tf.device("GPU:0"):
            return tf.tanh(x, name="moved")

    before = tf.config.get_soft_device_placement()
    with hard_placement(), pytest.raises(tf.errors.InvalidArgumentError, match="GPU:0"):
        elsewhere(tf.eye(2))
    assert tf.config.get_soft_device_placement() == before


def test_soft_placed_op_is_named() -> None:
    """TensorFlow runs it on the default CPU without a word; the audit says so."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    try:

        @tf.function(autograph=False)
        def elsewhere(x: tf.Tensor) -> tf.Tensor:
            with tf.device("GPU:0"):
                return tf.tanh(x, name="moved")

        _, found = executed_ops(lambda: elsewhere(tf.eye(2)))
    finally:
        tf.config.set_soft_device_placement(before)
    gpu = ZERO.replace("CPU", "GPU")
    assert misplaced_ops(found, {"moved": gpu})[1] == ("moved (Tanh): planned on GPU:0, ran on CPU:0",)


def test_ops_that_python_calls_are_none_of_the_plan() -> None:
    """Bug: a sum of two replicas that an audit called itself stood for an op of the step that had the same name."""
    with tf.device("CPU:1"):
        one, two = tf.constant([1.0]), tf.constant([2.0])

    @tf.function(autograph=False)
    def placed() -> tf.Tensor:
        with tf.device("CPU:1"):
            return tf.raw_ops.AddV2(x=one, y=two) * 3.0

    def run() -> None:
        placed()
        with tf.device("CPU:2"):
            tf.raw_ops.AddV2(x=one, y=two)

    _, executed = executed_ops(run)
    assert executed["AddV2"] == ("AddV2", DeviceName.parse("CPU:1").canonical)
