"""The result of a check, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SCHEMA = "partition-doctor/1"


class Status(StrEnum):
    """How a check ended."""

    HOLDS = "holds"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check.

    Attributes:
        check: Its name.
        status: How it ended.
        text: What was seen, or why it was skipped.
        advice: What to do, where it failed.
        predicted_seconds: Seconds of a step by the plan; 0 where none was measured, as are the others.
        measured_seconds: Median seconds of a step.
        predicted_bytes: Largest peak of a device by the plan.
        measured_bytes: Largest peak of a device by TensorFlow, which counts on GPUs only.
    """

    check: str
    status: Status
    text: str
    advice: str = ""
    predicted_seconds: float = 0.0
    measured_seconds: float = 0.0
    predicted_bytes: int = 0
    measured_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, and the machine that they are about.

    Attributes:
        devices: The devices that were asked for, and the device that ran in place of each.
        versions: Versions of Python, of the libraries, and of the settings that influence the speed of ops.
        findings: In the order of the checks.
    """

    devices: Mapping[str, str]
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    schema: str = field(default=SCHEMA)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(finding for finding in self.findings if finding.status is Status.FAILED)
