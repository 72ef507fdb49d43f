"""A graph into which functions and steps are imported to see the shapes of their tensors; it never runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_FuncGraph: Any = tf.__internal__.FuncGraph
_Operation: Any = tf.Operation


class ScratchGraph(_FuncGraph):
    """TensorFlow's graph of a function, in which imported ops get neither devices nor colocations.

    These, op by op in Python, take about half of the time of an import; the shapes come from C++.
    """

    def _add_new_tf_operations(self, compute_devices: bool = True) -> list[Any]:
        """Wrap what has been imported.

        Returns:
            None of it: TensorFlow would look for the devices of these.
        """
        for operation in self.new_operations():
            _Operation._from_c_op(operation, g=self)
        return []

    def add(self, node: Any, inputs: Sequence[tf.Tensor] = ()) -> Any:
        """The operation of a NodeDef; TensorFlow infers its shapes."""
        return _Operation.from_node_def(node, self, list(inputs))

    def argument(self, dtype: tf.DType, shape: tf.TensorShape) -> tf.Tensor:
        """A placeholder, in a third of the time of TensorFlow's function for it, which checks all in Python."""
        node = tf.compat.v1.NodeDef(name=self.unique_name("Placeholder"), op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
        return self.add(node).outputs[0]
