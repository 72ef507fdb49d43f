"""Find the parts of a placed graph that XLA compiles: clusters, each a function on one device.

A cluster takes its inputs when it starts and hands over its results when it has ended, so no two may wait for each
other. A node's level is the most changes of device, or between compiled and not, on a path to it: nodes of one device
and one level wait for each other only among themselves, or for lower levels. Of these, what another device waits for is
a cluster of its own, which runs first: so a device does not keep another waiting for what that does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from cost_models.formulas_movement import FREE_OP_TYPES
from partitioner.emit.graph.dtypes import output_dtypes
from partitioner.ir.devices import DeviceName
from partitioner.ir.graph_def import in_run_order, producer, tensor_name
from partitioner.xla_kernels import refusal, unbounded_lists

_Place = tuple[str, bool]
_CANNOT_CROSS = {tf.variant.as_datatype_enum: "a list of tensors", tf.string.as_datatype_enum: "strings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of a graph that are compiled together.

    Attributes:
        device: The device that runs them.
        nodes: Their names, in an order in which they can run, without constants: each cluster has its own.
    """

    device: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """What is compiled of a graph, and why the rest is not.

    Attributes:
        clusters: In an order in which they can run.
        refused: By node on a device that compiles, why it is not compiled.
    """

    clusters: tuple[Cluster, ...]
    refused: Mapping[str, str]


def find_clusters(
    graph_def: Any,
    devices: Collection[str],
    *,
    fetched: Collection[str] = (),
    kept_out: Collection[str] = (),
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Clusters:
    """The clusters of a graph.

    Args:
        graph_def: A placed GraphDef; arguments and nodes without a device (variables' handles) belong to no cluster.
        devices: The devices whose nodes are compiled.
        fetched: Names of the tensors that are read outside of the graph.
        kept_out: Nodes that are not compiled, whatever they are.
        refused: Nodes that XLA was seen not to compile, and why.
    """
    return _Search(graph_def, devices, fetched, kept_out, refused).found()


class _Search:
    def __init__(
        self,
        graph_def: Any,
        devices: Collection[str],
        fetched: Collection[str],
        kept_out: Collection[str],
        refused: Mapping[str, str],
    ) -> None:
        self._devices, self._fetched = devices, fetched
        by_name = {node.name: node for node in graph_def.node}
        ordered = in_run_order(graph_def.node, lambda node: [producer(r) for r in node.input if producer(r) in by_name])
        self._by_name = by_name
        self._nodes = [node for node in ordered if _runs(node)]
        self._needs = {
            node.name: [name for r in node.input if (name := producer(r)) in by_name and _runs(by_name[name])]
            for node in self._nodes
        }
        functions = self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._refused = {
            node.name: why
            for node in self._nodes
            if node.device in devices and node.name not in kept_out
            if (why := refusal(node, functions, DeviceName.parse(node.device).type))
        }
        self._refused |= {name: why for name, why in unbounded_lists(graph_def.node).items() if name in self._needs}
        self._refused |= refused
        self._kept_out = frozenset(kept_out)

    def found(self) -> Clusters:
        """Find clusters until no two exchange what cannot leave a cluster."""
        while True:
            groups = self._groups()
            if not (crossing := self._crossing(groups)):
                break
            self._refused |= crossing
        made: dict[tuple[object, ...], list[str]] = {}
        for node in self._nodes:
            if node.name in groups:
                made.setdefault(groups[node.name], []).append(node.name)
        clusters = [
            Cluster(device=self._by_name[names[0]].device, nodes=tuple(names))
            for _, names in sorted(made.items(), key=lambda item: (item[0][1], not item[0][2]))
            if any(self._by_name[name].op not in FREE_OP_TYPES for name in names)
        ]
        return Clusters(clusters=tuple(clusters), refused=self._refused)

    def _place(self, node: Any) -> _Place:
        compiles = node.device in self._devices and node.name not in self._refused and node.name not in self._kept_out
        return node.device, compiles

    def _groups(self) -> dict[str, tuple[object, ...]]:
        """Device, level and whether another device waits for it, by node that compiles."""
        place = {node.name: self._place(node) for node in self._nodes}
        level: dict[str, int] = {}
        for name, needs in self._needs.items():
            level[name] = max((level[n] + (place[n] != place[name]) for n in needs), default=0)
        waited_for: set[str] = set()
        for name, needs in reversed(self._needs.items()):
            for source in needs:
                if place[source][0] != place[name][0] or name in waited_for:
                    waited_for.add(source)
        return {
            name: (device, level[name], name in waited_for) for name, (device, compiles) in place.items() if compiles
        }

    def _crossing(self, groups: Mapping[str, tuple[object, ...]]) -> dict[str, str]:
        """The nodes that would hand over what cannot leave a cluster, or take it, and why that is."""
        handed_over = [
            (read, source, node)
            for node in self._nodes
            for read in node.input
            if not read.startswith("^")
            and not is_constant(source := self._by_name[producer(read)])
            and groups.get(source.name) != groups.get(node.name)
        ]
        handed_over += [(tensor, self._by_name[producer(tensor)], None) for tensor in self._fetched]
        why: dict[str, str] = {}
        for read, source, reader in handed_over:
            index = int(tensor_name(read).rsplit(":", 1)[1])
            what = _CANNOT_CROSS.get(output_dtypes(source, self._functions)[index])
            for node in (source, reader) if what else ():
                if node is not None and node.name in groups:
                    why[node.name] = f"{node.op} hands {what} over to another program"
        return why


def _runs(node: Any) -> bool:
    """Whether a node takes part: it is no argument, which is there when the step starts, and no constant."""
    return bool(node.device) and node.op != "Placeholder" and not is_constant(node)


def is_constant(node: Any) -> bool:
    """Whether a node is a constant that waits for nothing: each cluster has its own copy."""
    return node.op == "Const" and not node.input
