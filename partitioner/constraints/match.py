"""Resolve requirements for a graph: the ops that each pattern matches, and the devices that these may use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from partitioner.errors import UsageError
from partitioner.ir.devices import DeviceName, parse_devices
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.requirements import Requirement, RequirementKind, ResolvedConstraint
from partitioner.spelling import argument

Peers = Sequence[Sequence[DeviceName]]
"""For each device, the device itself and then its peers, which do the same in other replicas."""


def requirements_of(
    pins: Mapping[str, str] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    colocate: Sequence[str] = (),
) -> tuple[Requirement, ...]:
    """The requirements that the arguments of `plan` describe.

    Raises:
        UsageError: A device is not valid; the error lists all such devices.
    """
    asked = [(RequirementKind.PIN, pattern, [device]) for pattern, device in (pins or {}).items()]
    for pattern, devices in (forbid or {}).items():
        asked.append((RequirementKind.FORBID, pattern, [devices] if isinstance(devices, str) else list(devices)))
    requirements, problems = [], []
    for kind, pattern, texts in asked:
        try:
            names = parse_devices([name for text in texts for name in text.split(",")])
        except UsageError as error:
            problems += [
                f"{kind} {pattern}={','.join(texts)}: {note}" for note in error.as_written[1] or [error.message]
            ]
            continue
        if kind is RequirementKind.PIN and len(names) > 1:
            problems.append(f"{kind} {pattern}={texts[0]}: a pin names one device, not {len(names)}")
        requirements.append(Requirement(kind=kind, pattern=pattern, devices=tuple(name.canonical for name in names)))
    if problems:
        raise UsageError(
            "what is asked of devices cannot be read", notes=problems, help=f"e.g. {argument('pins', 'conv.*=GPU:0')}"
        )
    return (*requirements, *(Requirement(kind=RequirementKind.COLOCATE, pattern=pattern) for pattern in colocate))


def resolve_constraints(
    graph: OpGraph, requirements: Sequence[Requirement], devices: Peers
) -> tuple[ResolvedConstraint, ...]:
    """The constraints for the ops of a graph.

    A pattern must match the whole of a layer path (`encoder/dense`), of a layer around it (`encoder`), or of an op
    name. A pin names a device of the first replica. Ops that may not be on a device may not be on its peers, which do
    the same in other replicas.

    Raises:
        UsageError: A pattern is no regular expression or matches nothing, or a device is not among these; the error
            lists all of them.
    """
    if not requirements:
        return ()
    around = {layer: _and_parents(layer) for layer in {op.layer for op in graph.ops}}
    names = {op.name: (*around[op.layer], op.name) for op in graph.ops}
    return resolved(requirements, names, [layer.path for layer in graph.layers], devices, "no layer and no op")


def resolved(
    requirements: Sequence[Requirement],
    names: Mapping[str, Sequence[str]],
    near_names: Sequence[str],
    devices: Peers,
    nothing: str,
) -> tuple[ResolvedConstraint, ...]:
    """The constraints, given the names of each op, and the names among which near misses are looked up."""
    constraints, problems = [], []
    for requirement in requirements:
        try:
            ops = _matched(requirement.pattern, names)
            if not ops:
                close = difflib.get_close_matches(requirement.pattern, near_names, n=4, cutoff=0.3) or near_names[:4]
                raise ValueError(f"matches {nothing}; near: {', '.join(close)}")
            constraints.append(
                ResolvedConstraint(
                    text=requirement.text,
                    ops=ops,
                    devices=_devices(requirement, devices),
                    together=requirement.kind is RequirementKind.COLOCATE,
                )
            )
        except ValueError as error:
            problems.append(f"{requirement.text}: {error}")
    if problems:
        raise UsageError(
            f"{len(problems)} of {len(requirements)} requirements cannot be read",
            notes=problems,
            help=f"patterns match whole names (re.fullmatch), e.g. {argument('pins', 'conv.*=GPU:0')}",
        )
    return tuple(constraints)


def _matched(pattern: str, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    matching = {name for name in {name for of_op in names.values() for name in of_op} if regex.fullmatch(name)}
    return tuple(op for op, of_op in names.items() if not matching.isdisjoint(of_op))


def _devices(requirement: Requirement, devices: Peers) -> frozenset[int] | None:
    """Indices of the allowed devices; None for colocation."""
    if requirement.kind is RequirementKind.COLOCATE:
        return None
    is_pin = requirement.kind is RequirementKind.PIN
    index = {name: place for place, peers in enumerate(devices) for name in (peers[:1] if is_pin else peers)}
    named = [DeviceName.parse(name) for name in requirement.devices]
    if strangers := [name.short for name in named if name not in index]:
        present = ", ".join(name.short for name in index)
        raise ValueError(f"{', '.join(strangers)} is not among the devices ({present})")
    chosen = frozenset(index[name] for name in named)
    return chosen if is_pin else frozenset(range(len(devices))) - chosen


def _and_parents(path: str) -> list[str]:
    parts = path.split("/") if path else []
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
