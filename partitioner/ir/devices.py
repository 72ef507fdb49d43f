"""Names of devices: people type `GPU:0`, files carry `/job:localhost/replica:0/task:0/device:GPU:0`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partitioner.errors import UsageError
from partitioner.spelling import argument

MOST_DEVICES = 4096
"""Most devices of a plan."""

MAX_NAMED = 8
"""More devices are shown as ranges."""

_LOCAL = ("localhost", 0, 0)
_SHORT = re.compile(
    r"(?:/job:(?P<job>\w+))?(?:/replica:(?P<replica>\d{1,18}))?(?:/task:(?P<task>\d{1,18}))?"
    r"/?(?:device:)?(?P<type>[A-Za-z]+):(?P<index>\d{1,18})"
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

    @property
    def stand_by(self) -> DeviceName:
        """Where ops run for which this device has no kernel: the host of a GPU; a CPU runs them itself."""
        return self.host if self.type == "GPU" else self


def parse_devices(text: str | Sequence[str]) -> list[DeviceName]:
    """Read a comma list of devices; `GPU:0-3` is a range.

    Raises:
        UsageError: Listing everything that is wrong with the list, not only the first.
    """
    parts = text.split(",") if isinstance(text, str) else list(text)
    devices: list[DeviceName] = []
    problems: list[str] = []
    for part in (part.strip() for part in parts):
        match = re.fullmatch(r"(.*:)(\d{1,18})-(\d{1,18})", part)
        names = [part]
        if match:
            first, last = int(match[2]), int(match[3])
            if last < first:
                problems.append(f"{part!r} is an empty range: {last} comes before {first}")
                continue
            if last - first >= MOST_DEVICES:
                problems.append(f"{part!r} is a range of {last - first + 1:,} devices; at most {MOST_DEVICES:,}")
                continue
            names = [f"{match[1]}{index}" for index in range(first, last + 1)]
        for name in names:
            try:
                device = DeviceName.parse(name)
            except ValueError as error:
                problems.append(str(error) if name else "an empty name between two commas")
                break
            if device in devices:
                problems.append(f"{device.short} is listed twice")
            devices.append(device)
    if problems:
        raise UsageError(
            f"{len(problems)} of the devices {'is' if len(problems) == 1 else 'are'} wrong",
            notes=problems,
            help=f"e.g. {argument('devices', 'GPU:0,GPU:1')} or GPU:0-3 or CPU:0,CPU:1",
        )
    return devices


def short_name(canonical: str) -> str:
    """`GPU:0` for `/job:localhost/replica:0/task:0/device:GPU:0`."""
    return DeviceName.parse(canonical).short


def share_memory(canonical: Iterable[str]) -> bool:
    """Whether these devices share memory, so that tensors need no copy: they are CPU devices of one process."""
    names = [DeviceName.parse(device) for device in canonical]
    return all(name.type == "CPU" for name in names) and len({name.host for name in names}) == 1


def equal_hosts(canonical: Sequence[str]) -> list[list[int]]:
    """Positions of devices by process; one group where processes have unlike numbers of devices.

    With one device in each process there is one group too.
    """
    hosts: dict[DeviceName, list[int]] = {}
    for position, device in enumerate(canonical):
        hosts.setdefault(DeviceName.parse(device).host, []).append(position)
    sizes = {len(positions) for positions in hosts.values()}
    return list(hosts.values()) if len(sizes) == 1 and sizes != {1} else [list(range(len(canonical)))]


def short_ranges(canonical: Iterable[str]) -> list[str]:
    """Short text for many devices: `GPU:0-7`, `/job:worker/task:0-63/GPU:0-7`."""
    indices: dict[tuple[str, int, int, str], list[int]] = {}
    for device in map(DeviceName.parse, canonical):
        indices.setdefault((device.job, device.replica, device.task, device.type), []).append(device.index)
    tasks: dict[tuple[str, int, str, tuple[str, ...]], list[int]] = {}
    for (job, replica, task, kind), numbers in indices.items():
        tasks.setdefault((job, replica, kind, tuple(number_ranges(numbers))), []).append(task)
    return [
        f"{kind}:{run}"
        if (job, replica, of_task) == ("localhost", 0, "0")
        else f"/job:{job}/task:{of_task}/{kind}:{run}"
        for (job, replica, kind, runs), numbers in tasks.items()
        for of_task in number_ranges(numbers)
        for run in runs
    ]


def few_names(canonical: Sequence[str]) -> list[str]:
    """The devices by their short names; many of them as ranges."""
    return [*map(short_name, canonical)] if len(canonical) <= MAX_NAMED else short_ranges(canonical)


def listed_devices(canonical: Sequence[str]) -> str:
    """`GPU:0, GPU:1`; of many devices the ranges."""
    return ", ".join(few_names(canonical))


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """`0-3` for numbers that follow one another, `5` for one alone."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
