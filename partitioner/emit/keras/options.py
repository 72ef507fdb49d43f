"""Options of TensorFlow's graph optimizers: off for a step in microbatches.

Such a step is a few hundred calls of functions. TensorFlow's graph optimizers would optimize a function again at every
call, and take longer than everything else in the first step. Each function is optimized once, at its first call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.core.protobuf import config_pb2

# Options of a single function call have no public API; public options hold for the whole process.
from tensorflow.python.eager import context


@contextmanager
def as_given() -> Iterator[None]:
    """Run functions that are called from Python in the context without optimizing them."""
    runtime: Any = context.context()
    before = runtime.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    runtime.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        runtime.function_call_options = before
