"""All checks, in order; an error in one of them is a finding."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

import keras

from partitioner import api
from partitioner.doctor.finding import Diagnosis, Finding, Status
from partitioner.doctor.machine import kernels, memory, presence, profiling
from partitioner.doctor.mechanisms import MECHANISMS, Mechanism
from partitioner.doctor.trial import REPORT, SAVED, saved_and_loaded, tried
from partitioner.emit.cluster.runtime import divide_gpu, take_gpu_memory_as_needed
from partitioner.errors import PartitionError
from partitioner.ir.devices import parse_devices
from partitioner.measure.store import settings
from partitioner.spelling import in_words

OnProgress = Callable[[str], object]


def examine(
    devices: str | Sequence[str],
    on_progress: OnProgress = lambda _: None,
    mechanisms: Sequence[Mechanism] | None = None,
    *,
    divide: bool = False,
) -> Diagnosis:
    """Run all checks. Logical CPU devices replace missing GPUs, which is a failure of its own.

    Args:
        devices: The devices to examine, as for `partitioner.plan`.
        on_progress: Called with the name of each check before it runs.
        mechanisms: The mechanisms to try; by default all, and a saved model.
        divide: Whether the GPUs among the devices are parts of the only one of this machine.

    Raises:
        UsageError: A device is no device, or TensorFlow has already started with too few of them; or no GPU can be
            divided.
    """
    parsed = parse_devices(devices)
    names = [name.canonical for name in parsed]
    if divide:
        divide_gpu(1 + max((name.index for name in parsed if name.type == "GPU"), default=0))
    else:
        take_gpu_memory_as_needed()  # a check runs another process beside this one
    actual = api.set_up_devices(names)
    findings = [presence(actual)]
    for check, run in (
        ("memory", lambda: memory(names)),
        ("kernels of GPUs", kernels),
        ("profiling", lambda: profiling(list(actual.values()))),
    ):
        on_progress(check)
        findings.append(_guarded(check, run))
    for mechanism in MECHANISMS if mechanisms is None else mechanisms:
        on_progress(mechanism.name)
        findings.append(_guarded(mechanism.name, lambda mechanism=mechanism: tried(mechanism, actual)))
    if mechanisms is None:
        on_progress(SAVED)
        findings.append(_guarded(SAVED, lambda: saved_and_loaded(actual)))
    return Diagnosis(devices=actual, versions=_versions(), findings=tuple(findings))


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "keras": keras.__version__, **settings()}


def _guarded(check: str, run: Callable[[], Finding]) -> Finding:
    """A finding whatever happens: an error is one, with its place."""
    try:
        return run()
    except PartitionError as error:
        message, notes, help = error.as_written
        text = in_words("; ".join([message, *notes[:2]]))
        return Finding(check=check, status=Status.FAILED, text=text, advice=in_words(help or ""))
    except Exception as error:  # whatever TensorFlow raises is what the check is for
        # TensorFlow counts several errors on a first line, and lists them below.
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and "root error(s)" not in line]
        return Finding(
            check=check,
            status=Status.FAILED,
            text=": ".join([type(error).__name__, *lines[:1]]),
            advice=REPORT,
        )
