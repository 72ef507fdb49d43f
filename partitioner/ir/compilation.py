"""Which devices run programs that XLA compiles."""

from __future__ import annotations

from collections.abc import Iterable

from partitioner.ir.devices import DeviceName
from partitioner.ir.plan import JitCompile


def compiled_devices(choice: JitCompile, devices: Iterable[str]) -> frozenset[str]:
    """Those of the devices whose programs are compiled: all, none, or the GPUs among them."""
    if choice is JitCompile.AUTO:
        return frozenset(name for name in devices if DeviceName.parse(name).type == "GPU")
    return frozenset(devices if choice is JitCompile.ON else ())
