"""Measure what calls of stage programs take besides their ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# A function made of a graph rather than traced from Python has no public constructor.
from tensorflow.python.eager.polymorphic_function import atomic_function

from cost_models.calls import CallCost
from partitioner.emit.graph.rewriting import as_given
from partitioner.emit.pipeline.stage_function import StageFunction, run_independently
from partitioner.ir.stage_programs import ProgramKind, StageProgram
from partitioner.measure.link_times import fit_line
from partitioner.measure.step_times import seconds_in_turns

NUMS_OF_TENSORS = (1, 49)
"""That calls are given; they return as many."""
ROUNDS = (8, 24)
"""Calls on each device in a step of fewer and in one of more."""
_numbers = itertools.count()


def time_calls(devices: Sequence[str]) -> CallCost:
    """The cost of a call on one of these devices of this host while the others are called too.

    On each device a stage program without work is called again and again, and hands one of its tensors on to the next
    device, as in a pipeline; the others stay. What a call takes is the difference of a step of more calls to one of
    fewer. With two numbers of tensors it makes a line through the numbers given and returned.
    """
    steps: dict[tuple[int, int], Callable[[], None]] = {}
    for count in NUMS_OF_TENSORS:
        functions = [_idle_program(device, count) for device in devices]
        steps |= {(count, rounds): _step(functions, count, rounds) for rounds in ROUNDS}
    taken = dict(zip(steps, seconds_in_turns([*steps.values()]), strict=True))
    fewer, more = ROUNDS
    seconds = [max(taken[count, more] - taken[count, fewer], 0.0) / (more - fewer) for count in NUMS_OF_TENSORS]
    any_call, each = fit_line([2 * count for count in NUMS_OF_TENSORS], seconds)
    return CallCost(seconds=any_call, tensor_seconds=each)


def _idle_program(device: str, num_tensors: int) -> StageFunction:
    """A stage program that returns what it is given."""
    graph: Any = tf.__internal__.FuncGraph("idle")
    with graph.as_default(), tf.device(device):
        graph.inputs = [tf.compat.v1.placeholder(tf.float32, ()) for _ in range(num_tensors)]
        graph.outputs = [tf.identity(tensor) for tensor in graph.inputs]
    names = tuple(f"value_{number}" for number in range(num_tensors))
    return StageFunction(
        program=StageProgram(kind=ProgramKind.FORWARD, stage=0, device=device, ops=(), inputs=names, outputs=names),
        host=device,
        sums=(),
        captures=(),
        is_compiled=False,
        atomic=atomic_function.from_func_graph(f"partition_idle_{next(_numbers)}", graph, {"_noinline": True}),
    )


def _step(functions: Sequence[StageFunction], num_tensors: int, rounds: int) -> Callable[[], None]:
    """Runs so many calls on each device: in each round a value from the device before."""
    with tf.device(functions[0].program.device):
        values = [tf.zeros(()) for _ in range(num_tensors)]

    def calls(values: Sequence[Any]) -> list[Any]:
        own = []
        for function in functions:
            with tf.device(function.program.device):
                own.append([tf.identity(value) for value in values])
        passed: list[Any] = [values[0]] * len(functions)
        for _ in range(rounds):
            made: list[Any] = []
            for function, value, (_, *rest) in zip(functions, passed, own, strict=True):
                with tf.device(function.program.device):
                    made.append(function.call([value, *rest])[0])
                run_independently(made[-1])
            passed = [made[-1], *made[:-1]]
        for function in functions:
            function.register()
        return passed

    with as_given():
        function = tf.function(calls, autograph=False).get_concrete_function([tf.TensorSpec(())] * num_tensors)
        function(values)

    def run() -> None:
        with as_given():
            for value in function(values):
                value.numpy()

    return run
