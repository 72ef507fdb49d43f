"""Which copies wait for the device that receives them: those to a GPU, from a device of the same process.

TensorFlow makes the stream of a copy wait for all that the receiver's stream holds at that moment, since the memory
that it copies to may still be in use there. What the receiver is given later may overlap with the copy.

Source: gpu_util.cc of TensorFlow 2.21 (GPUUtil::DeviceToDeviceCopy and CopyCPUTensorToGPU). Copies without bytes do not
wait, and neither is it modelled that a tensor from another process waits when it is copied from its host.
"""

from __future__ import annotations

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
