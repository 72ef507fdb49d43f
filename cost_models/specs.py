"""The input and output values of the cost models: tensor, op, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Bytes of an element, by TensorFlow's name of the dtype. A string is counted by the
# size of tensorflow::tstring (24 bytes): its characters live outside the tensor's buffer.
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "qint8": 1, "quint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "qint32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
    "string": 24, "resource": 0, "variant": 0,
}  # fmt: skip

AttributeValue = bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype of a tensor. Every dimension is known: unknown sizes are resolved before costing.

    Attributes:
        shape: Sizes of its dimensions.
        dtype: TensorFlow's name of its dtype.
        content_bytes: For a list of tensors (dtype `variant`), the bytes of the tensors in it.
    """

    shape: tuple[int, ...]
    dtype: str
    content_bytes: int = 0

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a tensor shape has a negative dimension: {self.shape}")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(sorted(ITEM_BYTES))}")
        if self.content_bytes < 0:
            raise ValueError(f"a list of tensors cannot hold {self.content_bytes} bytes")

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the buffer in bytes; for a list of tensors, of its tensors."""
        return self.num_elements * ITEM_BYTES[self.dtype] + self.content_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """The input of a cost formula: the op's type, its tensors and its attributes, never its values.

    Attributes:
        type: TensorFlow op type.
        inputs: Inputs in order, with handles.
        outputs: Outputs in order.
        attributes: Attributes that a formula may need.
        runs: The functions it runs, if any: a loop's condition and body, the branches of a conditional, the function of
            a call.
    """

    type: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    runs: tuple[FunctionRun, ...] = ()

    @property
    def compute_dtype(self) -> str:
        """The dtype whose peak rate bounds it: the first floating dtype of its tensors, else float32."""
        tensors = (*self.inputs, *self.outputs)
        return next((tensor.dtype for tensor in tensors if "float" in tensor.dtype), "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRun:
    """A function that an op runs.

    Attributes:
        ops: Its ops.
        times: Number of runs.
        held_bytes: Peak bytes of these runs, besides inputs and outputs of the op.
    """

    ops: tuple[OpSpec, ...]
    times: int = 1
    held_bytes: int = 0

    def __post_init__(self) -> None:
        if self.times < 0:
            raise ValueError(f"a function cannot run {self.times} times")
        if self.held_bytes < 0:
            raise ValueError(f"a function cannot hold {self.held_bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Work of an execution of an op.

    Attributes:
        flops: Floating-point operations.
        read_bytes: Bytes that it must read once.
        written_bytes: Bytes that it must write once.
        costed: False if the op type, or the type of an op that it runs, has no formula.
        parts: For an op that runs others, their costs: the other fields are the sums.
    """

    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    costed: bool = True
    parts: tuple[CostPart, ...] = ()

    @property
    def moved_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPart:
    """The cost of an op that another op runs.

    Attributes:
        type: Its op type.
        dtype: Dtype of its arithmetic.
        cost: Cost of an execution.
        times: Number of executions.
    """

    type: str
    dtype: str
    cost: OpCost
    times: int
