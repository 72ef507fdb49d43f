"""Dtypes of what the nodes of a GraphDef make, from their attributes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partitioner.gpu_kernels import endpoints, op_signature


def output_dtypes(node: Any, functions: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of the dtypes of a node's outputs, in order.

    Args:
        node: A NodeDef.
        functions: FunctionDefs by name: a node may be named by the function that it calls.
    """
    signature = functions[node.op].signature if node.op in functions else op_signature(node.op)
    return endpoints(node, signature)[1].dtypes
