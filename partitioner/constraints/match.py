"""Requirements read against a graph: what each pattern matches, and which of the devices that may take."""

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
"""For each device, itself and then the devices that do the same in other replicas."""


def requirements_of(
    pins: Mapping[str, str] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    colocate: Sequence[str] = (),
) -> tuple[Requirement, ...]:
    """The requirements that the arguments of `plan` ask for.

    Raises:
        UsageError: Listing every device that is none.
    """
    asked = [(RequirementKind.PIN, pattern, [device]) for pattern, device in (pins or {}).items()]
    for pattern, devices in (forbid or {}).items():
        asked.append((RequirementKind.FORBID, pattern, [devices] if isinstance(devices, str) else list(devices)))
    found, problems = [], []
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
        found.append(Requirement(kind=kind, pattern=pattern, devices=tuple(name.canonical for name in names)))
    if problems:
        raise UsageError(
            "what is asked of devices cannot be read", notes=problems, help=f"e.g. {argument('pins', 'conv.*=GPU:0')}"
        )
    return (*found, *(Requirement(kind=RequirementKind.COLOCATE, pattern=pattern) for pattern in colocate))


def resolve_constraints(
    graph: OpGraph, requirements: Sequence[Requirement], devices: Peers
) -> tuple[ResolvedConstraint, ...]:
    """The constraints for the ops of a graph.

    A pattern must match all of a layer path (`encoder/dense`), of a layer around it (`encoder`), or of an op name. A
    pin names a device of the first replica; what may not be on a device of one may not be on its peers, which do the
    same.

    Raises:
        UsageError: Listing every pattern that is no regular expression or matches nothing, and every device that is
            not among these.
    """
    around = {layer: _and_parents(layer) for layer in {op.layer for op in graph.ops}}
    names = {op.name: (*around[op.layer], op.name) for op in graph.ops}
    return resolved(requirements, names, [layer.path for layer in graph.layers], devices, "no layer and no op")


def resolved(
    requirements: Sequence[Requirement],
    names: Mapping[str, Sequence[str]],
    known: Sequence[str],
    devices: Peers,
    nothing: str,
) -> tuple[ResolvedConstraint, ...]:
    """The constraints, given the names that each op goes by, and the names to find near misses among."""
    constraints, problems = [], []
    for requirement in requirements:
        try:
            ops = _matched(requirement.pattern, names)
            if not ops:
                close = difflib.get_close_matches(requirement.pattern, known, n=4, cutoff=0.3) or known[:4]
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
    """Indices of the devices that are left."""
    if requirement.kind is RequirementKind.COLOCATE:
        return None
    is_pin = requirement.kind is RequirementKind.PIN
    index = {name: place for place, peers in enumerate(devices) for name in (peers[:1] if is_pin else peers)}
    named = [DeviceName.parse(name) for name in requirement.devices]
    if strangers := [name.short for name in named if name not in index]:
        known = ", ".join(name.short for name in index)
        raise ValueError(f"{', '.join(strangers)} is not among the devices ({known})")
    found = frozenset(index[name] for name in named)
    return found if is_pin else frozenset(range(len(devices))) - found


def _and_parents(path: str) -> list[str]:
    parts = path.split("/") if path else []
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
