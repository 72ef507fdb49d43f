"""Read back where ops really ran: from the partition graphs of the executor, with hard placement.

A requested device proves nothing: soft placement moves ops silently, and optimizers rewrite graphs. The partition
graphs are the result after all of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Run metadata of functions has no public API outside TensorFlow 1 sessions.
from tensorflow.python.eager import context

from partitioner.emit.xla.calls import compiled_function
from partitioner.ir.devices import DeviceName
from partitioner.ir.sizes import Node, sizes_among

# Ops that the runtime adds by itself, on devices of its choice.
_RUNTIME_OPS = frozenset(
    {
        *("_Send", "_Recv", "_HostSend", "_HostRecv", "_SOURCE", "_SINK"),
        *("_Arg", "_Retval", "_DeviceArg", "_DeviceRetval"),
        *("NoOp", "Const", "_HostConst", "Identity", "IdentityN", "Placeholder"),
    }
)

# Batches are cut into microbatches on the host, and the lock of updates is there.
_BATCH_SCOPE = "microbatches/"
_LOCK_OPS = frozenset({"MutexV2", "MutexLock", "ConsumeMutexLock"})
# What hands an argument of a stage's function to the branch that is taken runs where the argument is.
_ARGUMENT_SCOPE, _HANDING_ON = "partition_arguments/", "Switch"

_BODY = re.compile(r"(body|cond|then|else|branches)/_\d+$")


@contextmanager
def hard_placement() -> Iterator[None]:
    """Within the block, an op that cannot run on its device is an error."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        yield
    finally:
        tf.config.set_soft_device_placement(before)


@contextmanager
def without_tensor_float_32() -> Iterator[None]:
    """Have GPUs multiply float32 as such, for as long as this lasts: TensorFloat-32 keeps 11 of 24 bits."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def executed_ops(run: Callable[[], Any]) -> tuple[Any, dict[str, tuple[str, str]]]:
    """Call `run`, which must call a function for the first time, and return the executed ops.

    Returns:
        The result, and (op type, canonical device) by the name of each executed op.
    """
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # drop the records of earlier functions
        result = run()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    executed: dict[str, tuple[str, str]] = {}
    for function in metadata.function_graphs:
        for partition in function.partition_graphs:
            nodes = [node for node in partition.node if node.device and node.op not in ("_Arg", "_Retval")]
            if not _is_called_alone(nodes):
                executed |= {node.name: (node.op, DeviceName.parse(node.device).canonical) for node in nodes}
                executed |= _compiled_ops(nodes)
    return result, executed


def _compiled_ops(nodes: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """What the calls of compiled functions among executed nodes ran, all of it on the device of the call."""
    executed = {}
    runtime: Any = context.context()
    for call in nodes:
        if name := compiled_function(call):
            scope, device = call.name[: call.name.rfind("/") + 1], DeviceName.parse(call.device).canonical
            ran = runtime.get_function_def(name).node_def
            constant = sizes_among(map(Node.of, ran))
            executed |= {f"{scope}{node.name}": (node.op, device) for node in ran if node.name not in constant}
    return executed


def _is_called_alone(nodes: Sequence[Any]) -> bool:
    """Whether this is a single op called by Python: TensorFlow makes a function of it, and names the op by its type."""
    return len(nodes) == 1 and nodes[0].name == nodes[0].op


def misplaced_ops(
    executed: Mapping[str, tuple[str, str]],
    placement: Mapping[str, str],
    copies: Mapping[str, Collection[str]] | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Compare the executed ops with the plan.

    An executed op counts when its name (without the calls it was inlined from) is planned, or when it belongs to
    the body of a planned loop or branch; it is misplaced when it ran elsewhere. An op that an optimizer made is
    misplaced when it computes on a device that the plan does not use.

    Args:
        executed: The type and the device of each executed op.
        placement: The planned device of each op.
        copies: The devices of planned ops that stages on several devices run each for themselves.

    Returns:
        The number of compared ops, and a line for each misplaced op.
    """
    used = set(placement.values())
    compared, wrong = 0, []
    for name, (op_type, device) in sorted(executed.items()):
        planned = _planned(name, placement)
        if planned is not None and op_type not in _RUNTIME_OPS:
            compared += 1
            if device != placement[planned] and device not in (copies or {}).get(planned, ()):
                wrong.append(f"{name} ({op_type}): planned on {_short(placement[planned])}, ran on {_short(device)}")
        elif (
            planned is None
            and device not in used
            and op_type not in _RUNTIME_OPS | _LOCK_OPS
            and _BATCH_SCOPE not in name
            and not (op_type == _HANDING_ON and _ARGUMENT_SCOPE in name)
        ):
            wrong.append(f"{name} ({op_type}): not in the plan, ran on {_short(device)}")
    return compared, tuple(wrong)


def _planned(name: str, placement: Mapping[str, str]) -> str | None:
    """The planned op that an executed op is: of its own name, else the loop or branch whose body it is in.

    TensorFlow names an op of a body `<loop>/body/_7/<op>` and an op of an inlined call `<call>/<op>`. Only names of
    calls may be cut off in front: the rest of a body op's name may be the name of a different op.
    """
    parts = name.split("/")
    while "PartitionedCall" in parts[0] and len(parts) > 1:
        parts = parts[1:]
    if (plain := "/".join(parts)) in placement:
        return plain
    bodies = [i for i in range(1, len(parts) - 1) if _BODY.match("/".join(parts[i : i + 2]))]
    return next((owner for i in bodies if (owner := "/".join(parts[:i])) in placement), None)


def _short(device: str) -> str:
    return DeviceName.parse(device).short
