"""The links of a plan: what each is, where its numbers come from, and the bytes that cross it."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.catalogue import catalogue
from cost_models.hardware import Link, StagedLink
from cost_models.measured import MEASURED_LINK
from cost_models.topology import Topology
from partitioner.ir.plan import LinkInfo, Origin
from partitioner.ir.schedule import Send

MAX_PAIRS = 64


def link_infos(
    topology: Topology, sends: Sequence[Send], *, is_described: bool, named: str | None = None
) -> tuple[LinkInfo, ...]:
    """The kinds of links of a topology, in the order in which its devices reach them.

    Args:
        topology: The devices and links of the plan.
        sends: All transfers of a step of the plan.
        is_described: Whether the user gave the link of each pair, rather than at most one link by name.
        named: The link that the user named.
    """
    of_pair = _pairs(topology)
    sent: dict[tuple[str, str], int] = {}
    for send in sends:
        sent[send.source, send.target] = sent.get((send.source, send.target), 0) + send.size_bytes
    uplinks: dict[Link, int] = {}
    for uplink in topology.uplinks:
        uplinks[uplink.link] = uplinks.get(uplink.link, 0) + 1
    chosen = (named or "").lower()
    return tuple(
        LinkInfo(
            name=link.name,
            origin=_origin(link, is_assumed=not is_described and link.name != chosen),
            latency_seconds=link.latency_seconds,
            bandwidth_bytes_per_second=link.bandwidth_bytes_per_second,
            num_pairs=len(pairs := of_pair.get(link, [])),
            num_uplinks=uplinks.get(link, 0),
            sent_bytes=sum(sent.get(pair, 0) for pair in pairs) if sent else 0,
            pairs=tuple(pairs[:MAX_PAIRS]),
        )
        for link in dict.fromkeys([*of_pair, *uplinks])
    )


def _pairs(topology: Topology) -> dict[Link, list[tuple[str, str]]]:
    """Names of source and target of every pair, by its link."""
    names = [placed.name for placed in topology.devices]
    # By identity first: hundreds of devices have hundreds of thousands of pairs, and few links.
    pairs_of: dict[int, list[tuple[str, str]]] = {}
    links: dict[int, Link] = {}
    for a, row in enumerate(topology.links):
        for b, link in enumerate(row):
            if a != b:
                links[id(link)] = link
                pairs_of.setdefault(id(link), []).append((names[a], names[b]))
    merged: dict[Link, list[tuple[str, str]]] = {}
    for key, pairs in pairs_of.items():
        merged.setdefault(links[key], []).extend(pairs)
    return merged


def _origin(link: Link, *, is_assumed: bool) -> Origin:
    if link.name == MEASURED_LINK:
        return Origin.MEASURED
    if is_assumed:
        return Origin.ASSUMED
    hops = link.hops if isinstance(link, StagedLink) else (link,)
    is_listed = all(catalogue().links.get(hop.name) == hop for hop in hops)
    return Origin.CATALOGUE if is_listed else Origin.FILE
