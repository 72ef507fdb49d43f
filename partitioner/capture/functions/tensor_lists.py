"""How many bytes TensorFlow's lists of tensors hold: what a loop saves for its gradient is kept in such lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cost_models.specs import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorList:
    """A list of tensors.

    Attributes:
        content_bytes: Bytes of the tensors in it.
        length: The most tensors it can hold, where that is fixed and known.
        most_bytes: Bytes of the tensors in it when it is full, where that is known.
        is_empty: Whether nothing was put into it.
        item: Shape of each tensor in it, where it is known and the same for all.
        value: Each tensor in it, where it is known and the same for all.
    """

    content_bytes: int = 0
    length: int | None = None
    most_bytes: int | None = None
    is_empty: bool = True
    item: tuple[int, ...] | None = None
    value: tuple[int, ...] | None = None

    def with_item(self, tensor: Any, size_bytes: int, value: tuple[int, ...] | None) -> TensorList:
        """The list with a further tensor of this value, if known; in a full list it replaces another tensor."""
        return replace(
            self,
            content_bytes=self.content_bytes + size_bytes,
            most_bytes=self.most_bytes if self.length is None else self.length * size_bytes,
            item=_static_shape(tensor.shape),
            is_empty=False,
            value=value if self.is_empty or value == self.value else None,
        ).capped()

    def capped(self) -> TensorList:
        """The list with its contents limited to its length."""
        most = self.content_bytes if self.most_bytes is None else self.most_bytes
        return replace(self, content_bytes=min(self.content_bytes, most))


NOTHING = TensorList()


def fullest(lists: Iterable[TensorList]) -> TensorList:
    """The list with the most bytes."""
    return max(lists, key=lambda held: held.content_bytes, default=NOTHING)


def grown(before: TensorList, once: TensorList, times: int) -> TensorList:
    """The list after a number of trips of a loop, where the first trip turns `before` into `once`."""
    content = before.content_bytes + times * (once.content_bytes - before.content_bytes)
    return replace(once, content_bytes=max(content, 0)).capped()


def list_after(
    op: Any,
    lists: Callable[[Any], TensorList],
    specs: Mapping[str, TensorSpec],
    constant: Callable[[Any], tuple[int, ...] | None],
    saved_bytes: Callable[[Any], int],
) -> TensorList:
    """The contents of the list that an op outputs.

    An op that neither fills nor empties lists passes on the fullest of its input lists.

    Args:
        op: An operation of TensorFlow.
        lists: Gives the contents of a list.
        specs: Specs of the op's inputs, and of its outputs that are not lists.
        constant: Gives the constant integers in a tensor, where they are known.
        saved_bytes: Gives the bytes needed to keep a tensor for a gradient.
    """
    held = fullest(map(lists, op.inputs))
    size_bytes = [specs[tensor.name].size_bytes for tensor in op.inputs]
    match op.type:
        case "TensorListReserve":
            length = constant(op.inputs[1])
            return TensorList(length=length[0] if length else None)
        case "EmptyTensorList":
            return NOTHING
        case "TensorListFromTensor":
            shape = _static_shape(op.inputs[0].shape)
            length, item = (shape[0], shape[1:]) if shape else (None, None)
            return TensorList(content_bytes=size_bytes[0], length=length, most_bytes=size_bytes[0], item=item)
        case "TensorListScatter" | "TensorListScatterV2" | "TensorListSplit":
            return TensorList(content_bytes=size_bytes[0])
        case "TensorListPushBack":
            return lists(op.inputs[0]).with_item(op.inputs[1], saved_bytes(op.inputs[1]), constant(op.inputs[1]))
        case "TensorListSetItem":
            return lists(op.inputs[0]).with_item(op.inputs[2], size_bytes[2], None)
        case "TensorListPopBack":
            left = held.content_bytes - specs[op.outputs[1].name].size_bytes
            return replace(held, content_bytes=max(left, 0))
        case "OptionalFromValue" | "TensorListConcatLists":
            return TensorList(content_bytes=sum(size_bytes))
    return held


def _static_shape(shape: Any) -> tuple[int, ...] | None:
    return tuple(shape) if shape.is_fully_defined() else None
