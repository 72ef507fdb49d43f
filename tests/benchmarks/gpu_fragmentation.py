"""Memory that an allocator needs to hold what a training step on a GPU holds, over the bytes of the buffers themselves.

    python -m tests.benchmarks.gpu_fragmentation [--models resnet50,decoder]

Free memory between buffers may be too small for the next one. Each step's buffers are given out and taken back, in the
simulated order, by the rules of TensorFlow's allocator: the smallest free chunk that is large enough, split if it is
twice as large or 128 MiB larger, joined with its free neighbours when it is freed (bfc_allocator.cc, TensorFlow 2.21).
The table shows the least memory with which that goes well, found by bisection, and the peak that plans predict.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cost_models.catalogue import device_named, link_named
from cost_models.topology import Topology, TopologyDevice
from partitioner.planner.model.buffers import Buffers
from partitioner.planner.model.costs import cost_ops
from partitioner.planner.simulate.unpipelined_memory import DeviceBuffers
from tests.benchmarks.planning import _model as decoder

_SPLIT_BYTES = 128 << 20
_STEPS = 3
Event = tuple[str, int]
"""A buffer, and its bytes; negative when it is freed."""


class BestFit:
    """Chunks of one region, by the rules above."""

    def __init__(self, region_bytes: int) -> None:
        self._free = [(region_bytes, 0)]  # size and start, ascending
        self._starts = {0: region_bytes}
        self._ends = {region_bytes: 0}

    def take(self, size: int) -> tuple[int, int] | None:
        """Start and size of a chunk for `size` bytes; None where no free chunk is large enough."""
        index = bisect_left(self._free, (size, -1))
        if index == len(self._free):
            return None
        chunk, start = self._free.pop(index)
        del self._starts[start], self._ends[start + chunk]
        if chunk >= 2 * size or chunk - size >= _SPLIT_BYTES:
            self._put(start + size, chunk - size)
            chunk = size
        return start, chunk

    def give_back(self, start: int, size: int) -> None:
        """Free a chunk."""
        if (before := self._ends.get(start)) is not None:
            size += self._drop(before)
            start = before
        if start + size in self._starts:
            size += self._drop(start + size)
        self._put(start, size)

    def _put(self, start: int, size: int) -> None:
        if size:
            insort(self._free, (size, start))
            self._starts[start], self._ends[start + size] = size, start

    def _drop(self, start: int) -> int:
        size = self._starts.pop(start)
        del self._ends[start + size]
        self._free.pop(bisect_left(self._free, (size, start)))
        return size


def holds(events: Sequence[Event], variables: Sequence[int], region_bytes: int) -> bool:
    """Whether an allocator with that much memory gets through some steps."""
    allocator = BestFit(region_bytes)
    for size in variables:
        if allocator.take(size) is None:
            return False
    for _ in range(_STEPS):
        held: dict[str, list[tuple[int, int]]] = {}
        for buffer, size in events:
            if size < 0:
                allocator.give_back(*held[buffer].pop())
            elif (chunk := allocator.take(size)) is None:
                return False
            else:
                held.setdefault(buffer, []).append(chunk)
        for chunk in [chunk for chunks in held.values() for chunk in chunks]:
            allocator.give_back(*chunk)
    return True


def buffers_of(model: Any, batch_size: int) -> tuple[list[Event], list[int], int]:
    """The buffers of a training step on one GPU in order, its variables, and its peak as plans predict it."""
    from tests.captures import capture

    device = device_named("a100-80gb")
    name = "/job:localhost/replica:0/task:0/device:GPU:0"
    placed = TopologyDevice(name=name, device=device, memory_bytes=device.memory_bytes)
    costed = cost_ops(capture(model, batch_size=batch_size).graph, Topology.uniform([placed], link_named("nvlink3")))
    buffers = Buffers(costed)
    on_one = DeviceBuffers(costed, buffers, dict.fromkeys(costed.graph.op, 0))
    walked = on_one.walk(0, list(costed.graph.ops))
    events = [(buffer, size) for _, buffer, size in walked.changes]
    batch = [(tensor, buffers.sizes["GPU"][tensor]) for tensor in costed.graph.inputs]
    variables = [max(variable.size_bytes, 1) + -variable.size_bytes % 256 for variable in costed.graph.variables]
    return [*batch, *events], variables, sum(variables) + sum(size for _, size in batch) + walked.most_bytes


def models() -> dict[str, tuple[Callable[[], Any], int]]:
    """By name: how to build a compiled model, and its batch."""
    import keras

    def application(build: Callable[..., Any], size: int) -> Callable[[], Any]:
        def made() -> Any:
            model = build(weights=None, input_shape=(size, size, 3))
            model.compile("adam", "sparse_categorical_crossentropy")
            return model

        return made

    apps = keras.applications
    return {
        "resnet50": (application(apps.ResNet50, 224), 64),
        "densenet121": (application(apps.DenseNet121, 224), 64),
        "efficientnetb0": (application(apps.EfficientNetB0, 224), 64),
        "convnexttiny": (application(apps.ConvNeXtTiny, 224), 64),
        "vgg16": (application(apps.VGG16, 224), 64),
        "mobilenetv2": (application(apps.MobileNetV2, 224), 64),
        "decoder": (lambda: decoder(24), 256),
    }


def least_bytes(events: Sequence[Event], variables: Sequence[int], peak_bytes: int) -> int:
    """The least memory, to a thousandth of the peak, with which an allocator gets through."""
    low, high = peak_bytes - 1, 2 * peak_bytes
    while high - low > peak_bytes // 1000:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(events, variables, middle) else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="comma list (default: all)")
    arguments = parser.parse_args()
    known = models()
    table = Table("model", "rows", "peak GiB", "least GiB", "over")
    for name in (arguments.models or ",".join(known)).split(","):
        build, rows = known[name]
        events, variables, peak = buffers_of(build(), rows)
        least = least_bytes(events, variables, peak)
        table.add_row(name, str(rows), f"{peak / 2**30:.2f}", f"{least / 2**30:.2f}", f"{least / peak - 1:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
