"""The plain values the cost models compute with: tensor, op, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Bytes of one element, by the name TensorFlow gives the dtype. A string is counted by the
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
    """Shape and dtype of a tensor. Every dimension is known: unknown ones are resolved before costing."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise ValueError(f"a tensor shape has a negative dimension: {self.shape}")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(sorted(ITEM_BYTES))}")

    @property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the buffer in bytes."""
        return self.num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """What a cost formula may look at: the op's type, its tensors and its attributes, never its values."""

    type: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Work of one execution of an op. `costed` is False when no formula knows the op type."""

    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    costed: bool = True

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            costed=self.costed and other.costed,
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes
