"""Powers with a constant exponent, written out: `x ** 3` takes a CPU six times as long as `x * (x * x)`.

TensorFlow's arithmetic optimizer does the same in steps that it may rewrite, to the same bits; on several devices it is
off (`emit/graph/rewriting.py`). Written out in the traced graph, powers cost in plans what runs. GELU by its tanh has
such powers, and so have gradients of squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_FLOATS = frozenset(dtype.as_datatype_enum for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64))
# As in TensorFlow's ConvertPowStage (grappler/optimizers/arithmetic_optimizer.cc).
_OPS = {2.0: "Square", 1.0: "Identity", 0.5: "Sqrt", -0.5: "Rsqrt", -1.0: "Reciprocal"}


def write_out_powers(graph_def: Any) -> dict[str, str]:
    """Replace the powers among the nodes of `graph_def`, not of its functions, whose exponent is a known number.

    A power keeps its name. A cube becomes the product of its base with a square, a node of its own.

    Returns:
        The node of the cube, by that of the square added for it.
    """
    nodes = {node.name: node for node in graph_def.node}
    added: dict[str, str] = {}
    for node in list(graph_def.node):
        if node.op != "Pow" or node.attr["T"].type not in _FLOATS:
            continue
        base, exponent = node.input[:2]
        number = _number(nodes, exponent)
        if number in _OPS:
            node.op = _OPS[number]
            del node.input[1]
        elif number == 3.0:
            square = graph_def.node.add(name=f"{node.name}_square", op="Square", device=node.device, input=node.input)
            del square.input[1]
            square.attr["T"].CopyFrom(node.attr["T"])
            node.op = "Mul"
            node.input[:2] = [base, square.name]
            added[square.name] = node.name
    return added


def _number(nodes: Mapping[str, Any], reference: str) -> float | None:
    """The value of a constant scalar; gradients of powers subtract one from it."""
    node = nodes.get(reference)
    if node is None or node.op not in ("Const", "Sub"):
        return None
    if node.op == "Const":
        value = tf.make_ndarray(node.attr["value"].tensor)
        return float(value) if value.ndim == 0 else None
    left, right = (_number(nodes, name) for name in node.input[:2])
    return None if left is None or right is None else left - right
