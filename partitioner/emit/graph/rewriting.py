"""What TensorFlow's graph optimizers may rewrite in a placed step; functions of the user keep their own settings.

Two of them are off. The remapper fuses ops of two devices (Conv with BiasAdd), and so undoes a placement. The
arithmetic optimizer merges sums only where they share a device, so rounding would depend on the placement. What it has
of use, powers, is written out before (`capture/lower/powers.py`).

A step in microbatches is a few hundred calls of functions, each of which would be optimized again at every call, and
that takes longer than everything else in the first step: nothing is rewritten there. What its functions hold is
optimized once, at their first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

# Options of a single function call have no public API; public options hold for the whole process.
from tensorflow.python.eager import context

_OFF = rewriter_config_pb2.RewriterConfig.OFF


def as_allowed(*, is_staged: bool) -> AbstractContextManager[None]:
    """Run a step, called from Python in the context, with the rewrites that it may have.

    TensorFlow optimizes a function at its first call, and keeps to that.
    """
    return as_given() if is_staged else op_by_op()


def as_given() -> AbstractContextManager[None]:
    """Run functions that are called from Python in the context without optimizing them."""

    def change(rewrites: Any) -> None:
        rewrites.disable_meta_optimizer = True

    return _calling(_changed(change))


def op_by_op() -> AbstractContextManager[None]:
    """Run functions that are called from Python in the context without rewrites that join ops."""
    return _calling(op_by_op_options())


def op_by_op_options() -> Any:
    """The options of `op_by_op`, for a call within a graph."""

    def change(rewrites: Any) -> None:
        rewrites.remapping = rewrites.arithmetic_optimization = _OFF

    return _changed(change)


def _changed(change: Callable[[Any], None]) -> Any:
    """The options of this process with other rewrites."""
    runtime: Any = context.context()
    before = runtime.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    change(config.graph_options.rewrite_options)
    return context.FunctionCallOptions(before.executor_type, config)


@contextmanager
def _calling(options: Any) -> Iterator[None]:
    runtime: Any = context.context()
    before = runtime.function_call_options
    runtime.function_call_options = options
    try:
        yield
    finally:
        runtime.function_call_options = before
