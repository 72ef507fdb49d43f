"""Which copies wait for the device that receives them: those to a GPU, from a device of the same process.

TensorFlow makes the stream of a copy wait for all that the receiver's stream holds when the copy is asked for, since
the memory that it copies to may still be in use there. The host of the sender asks once it has given its device what
makes the tensor, which may be long before that runs. What the receiver is given later may overlap with the copy.

Source: gpu_util.cc of TensorFlow 2.21 (GPUUtil::DeviceToDeviceCopy and CopyCPUTensorToGPU). Copies without bytes do not
wait, and neither is it modelled that a tensor from another process waits when it is copied from its host, nor that all
copies which leave a GPU share a stream.
"""

from __future__ import annotations

from bisect import bisect_right

from cost_models.topology import Topology
from partitioner.ir.devices import DeviceName


class Streams:
    """The streams of the devices of a topology."""

    def __init__(self, topology: Topology) -> None:
        names = [DeviceName.parse(placed.name) for placed in topology.devices]
        self._processes = [name.host for name in names]
        self._is_gpu = [name.type == "GPU" for name in names]
        self.any_wait = any(
            is_gpu and self._processes.count(process) > 1
            for process, is_gpu in zip(self._processes, self._is_gpu, strict=True)
        )

    def waits(self, source: int, target: int, size_bytes: float) -> bool:
        """Whether a copy begins only once its target has finished what it had been given before."""
        return self._is_gpu[target] and self._processes[source] == self._processes[target] and size_bytes > 0


class Host:
    """What the host of a device gives it, in order: it waits for what calls are given, but not for their ends.

    Attributes:
        free: When it has given the device all calls so far.
    """

    def __init__(self) -> None:
        self.free = 0.0
        self._given: list[float] = []
        self._ends: list[float] = []

    def gives(self, inputs: float, host_seconds: float, end: float) -> float:
        """Give the device a call whose inputs are there at `inputs`, and which will end at `end`.

        Returns:
            When the host has given all of it, and asks for copies of what it makes.
        """
        self._given.append(max(inputs, self.free))
        self._ends.append(end)
        self.free = self._given[-1] + host_seconds
        return self.free

    def finished(self, asked: float) -> float:
        """When the device has finished the calls whose first op it was given by then."""
        count = bisect_right(self._given, asked)
        return self._ends[count - 1] if count else 0.0
