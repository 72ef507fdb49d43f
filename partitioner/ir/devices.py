"""Names of devices: people type `GPU:0`, files carry `/job:localhost/replica:0/task:0/device:GPU:0`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOCAL = ("localhost", 0, 0)
_SHORT = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:(?P<replica>\d+))?(?:/task:(?P<task>\d+))?"
    r"/?(?:device:)?(?P<type>[A-Za-z]+):(?P<index>\d+)"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DeviceName:
    """One device of one task of one job."""

    job: str = "localhost"
    replica: int = 0
    task: int = 0
    type: str
    index: int

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Read `GPU:0`, `/GPU:0`, `/job:worker/task:1/GPU:0` or the canonical form.

        Raises:
            ValueError: The text is none of these, or the type is neither CPU nor GPU.
        """
        match = _SHORT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a device; expected TYPE:INDEX, e.g. GPU:0 or CPU:1")
        kind = match["type"].upper()
        if kind not in ("CPU", "GPU"):
            raise ValueError(f"{text!r} has the device type {match['type']!r}; expected CPU or GPU")
        return cls(
            job=match["job"] or "localhost",
            replica=int(match["replica"] or 0),
            task=int(match["task"] or 0),
            type=kind,
            index=int(match["index"]),
        )

    @property
    def canonical(self) -> str:
        """The name TensorFlow and plan.json use."""
        return f"/job:{self.job}/replica:{self.replica}/task:{self.task}/device:{self.type}:{self.index}"

    @property
    def short(self) -> str:
        """The name people read."""
        if (self.job, self.replica, self.task) == _LOCAL:
            return f"{self.type}:{self.index}"
        return f"/job:{self.job}/task:{self.task}/{self.type}:{self.index}"

    @property
    def is_local(self) -> bool:
        """Whether the device belongs to this process."""
        return self.job == "localhost"

    @property
    def host(self) -> DeviceName:
        """The CPU that feeds this device."""
        return DeviceName(job=self.job, replica=self.replica, task=self.task, type="CPU", index=0)


def short_name(canonical: str) -> str:
    """`GPU:0` for `/job:localhost/replica:0/task:0/device:GPU:0`."""
    return DeviceName.parse(canonical).short
