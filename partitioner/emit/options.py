"""What TensorFlow may do to a graph before it runs it: stage functions are optimised, the step that calls them is not.

A step of many microbatches is a few hundred calls of functions that are each optimised once. TensorFlow's graph
optimizers look into a function again at every call, find nothing there to gain, and take longer than everything else in
the first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.core.protobuf import config_pb2

# Options of one function call have no public API; the public ones hold for the whole process.
from tensorflow.python.eager import context


def optimized() -> bytes:
    """Serialized ConfigProto for a call whose function is optimised as any other of this process."""
    runtime: Any = context.context()
    return runtime.function_call_options.config_proto_serialized


@contextmanager
def as_given() -> Iterator[None]:
    """Run functions that are called from Python as they are, for as long as this lasts."""
    runtime: Any = context.context()
    before = runtime.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    runtime.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        runtime.function_call_options = before
