"""Memory of GPUs that TensorFlow allocates from, against the lines "Created device" that people published.

python -m tests.benchmarks.gpu_memory
"""

from __future__ import annotations

from cost_models.catalogue import device_named
from cost_models.memory import gpu_bytes

PUBLISHED_MIB = {
    "t4": 13_757,
    "l4": 20_967,
    "rtx-2080-ti": 9_637,
    "rtx-3090": 22_446,
    "a100-80gb": 79_197,
    "h100-sxm": 78_763,
    "A100 MIG 3g.20gb": 18_211,
}
"""By catalogue name: MiB of `Created device ... with N MB memory` in public logs of TensorFlow 2.x."""
MIG_MIB = 20_096


def main() -> None:
    print(f"{'GPU':18} {'published MiB':>14} {'ours MiB':>10} {'ours / published':>18}")
    for name, published in PUBLISHED_MIB.items():
        if "MIG" in name:
            ours = gpu_bytes(MIG_MIB * 2**20, 8.0)
        else:
            device = device_named(name)
            ours = gpu_bytes(device.memory_bytes, device.compute_capability)
        print(f"{name:18} {published:14,} {ours >> 20:10,} {ours / (published << 20):18.3f}")


if __name__ == "__main__":
    main()
