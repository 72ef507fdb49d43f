"""Facts about a graph before it runs: shapes, constants, lists of tensors, and function runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The public API cannot fold constants.
from tensorflow.python.framework.tensor_util import try_evaluate_constant

from cost_models.specs import FunctionRun, OpSpec, TensorSpec
from partitioner.capture.functions.buffers import FunctionBuffers
from partitioner.capture.functions.tensor_lists import NOTHING, TensorList
from partitioner.capture.lower.attributes import readable_attributes

# No shape and no list of axes has more numbers.
_MOST_NUMBERS = 16


@dataclass(kw_only=True)
class Reading:
    """Facts about a graph before it runs, by names of tensors and ops.

    Attributes:
        specs: Shape and dtype of each tensor.
        assumed: Tensors with an assumed size that are not index vectors.
        values: Constant numbers.
        lists: Contents of lists of tensors.
        buffers: Buffers of the tensors.
        runs: Function runs by the op that runs them.
        passed_on: For loop outputs that no trip changes, the input that they equal; for lists whose items are replaced
            in turn, the input list whose place they take.
        assumed_trips: Loops whose number of trips is not known, and the number that was assumed.
        insides: The imported functions, by the name in the scratch graph of the op that runs them.
        tensors: The tensors of the scratch graph.
        idle_sums: By function name, the nodes for which `is_idle_sum` holds wherever the function runs.
    """

    specs: dict[str, TensorSpec] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    lists: dict[str, TensorList] = field(default_factory=dict)
    buffers: FunctionBuffers = field(default_factory=FunctionBuffers)
    runs: dict[str, tuple[FunctionRun, ...]] = field(default_factory=dict)
    passed_on: dict[str, str] = field(default_factory=dict)
    assumed_trips: dict[str, int] = field(default_factory=dict)
    insides: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    idle_sums: dict[str, frozenset[str]] = field(default_factory=dict)

    def value(self, tensor: Any) -> float | None:
        """The constant value of a tensor; None where it is not known."""
        if tensor.name not in self.values and tensor.dtype.is_integer and tensor.shape.num_elements() == 1:
            copied = tensor.op.type == "Identity"
            number = self.value(tensor.op.inputs[0]) if copied else self.constant(tensor)
            if number is not None:
                self.values[tensor.name] = number[0] if isinstance(number, tuple) else number
        return self.values.get(tensor.name)

    def constant(self, tensor: Any) -> tuple[int, ...] | None:
        """The constant integers in a small tensor; None where they are not known."""
        if tensor.name in self.values:
            return (int(self.values[tensor.name]),)
        size = tensor.shape.num_elements()
        if not tensor.dtype.is_integer or size is None or size > _MOST_NUMBERS:
            return None
        numbers: Any = try_evaluate_constant(tensor)
        return None if numbers is None else tuple(numbers.flatten().tolist())

    def list(self, tensor: Any) -> TensorList:
        """The contents of a list of tensors; nothing for any other tensor."""
        return self.lists.get(tensor.name, NOTHING)

    def saved_bytes(self, tensor: Any) -> int:
        """Bytes needed to keep a tensor for a gradient."""
        return self.buffers.saved_bytes(tensor.name, self.specs[tensor.name].size_bytes)

    def spec(self, op: Any) -> OpSpec:
        """The spec of an operation for cost formulas."""
        return OpSpec(
            type=op.type,
            inputs=tuple(self.specs[tensor.name] for tensor in op.inputs),
            outputs=tuple(self.specs[tensor.name] for tensor in op.outputs),
            attributes=readable_attributes(op.node_def),
            runs=self.runs.get(op.name, ()),
        )
