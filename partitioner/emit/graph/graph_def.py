"""Write a placement into a GraphDef: a device on every node, in function bodies too; constants where they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Functions enter the runtime only through here.
from tensorflow.python.eager import context

from partitioner.gpu_kernels import is_host_only
from partitioner.ir.graph_def import producer

_FOLDED_THROUGH = frozenset({"Add", "AddN", "AddV2", "Div", "Mul", "Neg", "RealDiv", "Sub"})


def place_graph_def(
    graph_def: Any, placement: Mapping[str, str], suffix: str, *, host_of: Callable[[str], str] = str
) -> Any:
    """A copy of `graph_def` with the device of `placement` on every node.

    A constant is copied to each device that reads it, rather than sent there in every step. Functions that ops call get
    a copy per device under a new name (`suffix` keeps it unique), because TensorFlow knows functions by name. What no
    GPU can run in them goes to the host.

    Args:
        graph_def: A GraphDef with data and control edges, not changed.
        placement: Device name by node name; other nodes (captured placeholders) stay without a device.
        suffix: Text that no other placed copy in this process uses.
        host_of: The host of a device, or the device itself where it is a CPU.
    """
    placed = type(graph_def)()
    placed.versions.CopyFrom(graph_def.versions)
    functions = _PlacedFunctions(graph_def.library, suffix, host_of)
    copies = _constant_copies(graph_def, placement, host_of)
    for node in graph_def.node:
        device = placement.get(node.name, "")
        new = placed.node.add()
        new.CopyFrom(node)
        new.device = device
        for index, reference in enumerate(new.input):
            if (reference, device) in copies:
                new.input[index] = copies[reference, device]
        functions.place_calls(new, device)
        for (source, other), name in copies.items():
            if source == node.name:
                copy = placed.node.add()
                copy.CopyFrom(node)
                copy.name, copy.device = name, other
    placed.library.CopyFrom(functions.library)
    _keep_what_leaves(placed)
    return placed


def _keep_what_leaves(graph_def: Any) -> None:
    """Have TensorFlow's graph optimizers keep the nodes that another device reads, whatever their settings.

    A function of the user, or whoever loads an export, may run the graph with settings of its own. Sums and products
    are left alone: constants are folded through them, and would round otherwise than in the unplaced model.
    """
    devices = {node.name: node.device for node in graph_def.node}
    leaving = {
        name
        for node in graph_def.node
        for read in node.input
        if not read.startswith("^") and devices.get(name := producer(read), "") not in ("", node.device)
    }
    for node in graph_def.node:
        if node.name in leaving and node.op not in _FOLDED_THROUGH:
            node.attr["_grappler_do_not_remove"].b = True


def rename_devices(graph_def: Any, devices: Mapping[str, str]) -> None:
    """Rename devices in a GraphDef and its functions: on nodes, and where calls go. Names are canonical."""
    for _, nodes in bodies(graph_def):
        for node, target in call_targets(nodes):
            node.attr["value"].tensor.string_val[:] = [devices.get(target, target).encode()]
        for node in nodes:
            node.device = devices.get(node.device, node.device)


def bodies(graph_def: Any) -> list[tuple[str, Any]]:
    """The nodes of a GraphDef, under an empty name, and those of each of its functions."""
    return [
        ("", graph_def.node),
        *((function.signature.name, function.node_def) for function in graph_def.library.function),
    ]


def call_targets(nodes: Iterable[Any]) -> list[tuple[Any, str]]:
    """The constants that say to which device calls go, and the device."""
    targets = {producer(node.input[0]) for node in nodes if node.op == "RemoteCall"}
    constants = [node for node in nodes if node.op == "Const" and node.name in targets]
    return [(node, node.attr["value"].tensor.string_val[0].decode()) for node in constants]


def add_waits(graph_def: Any, waits: Mapping[str, Iterable[str]]) -> None:
    """Let nodes of `graph_def` wait for others, by name."""
    for node in graph_def.node:
        node.input.extend(f"^{source}" for source in waits.get(node.name, ()))


def copy_to_loops(graph_def: Any, arguments: Iterable[str]) -> None:
    """Let loops on other devices read copies of arguments: TensorFlow runs a loop variable where it comes from.

    Args:
        graph_def: A placed GraphDef.
        arguments: Names of its placeholders.
    """
    given = {node.name: node for node in graph_def.node if node.name in set(arguments)}
    copies: dict[tuple[str, str], Any] = {}
    for loop in [node for node in graph_def.node if node.op in ("While", "StatelessWhile")]:
        for index, read in enumerate(loop.input):
            if read in given:
                key = read, loop.device
                if key not in copies:
                    name = f"{read}_for_loops_{len(copies)}"
                    copies[key] = graph_def.node.add(name=name, op="Identity", input=[read], device=loop.device)
                    copies[key].attr["T"].CopyFrom(given[read].attr["dtype"])
                loop.input[index] = copies[key].name


def register_functions(graph_def: Any) -> None:
    """Register the functions that nodes of `graph_def` call with the runtime; importing adds them only to a graph."""
    runtime: Any = context.context()
    for function in graph_def.library.function:
        runtime.add_function_def(function)


def _constant_copies(
    graph_def: Any, placement: Mapping[str, str], host_of: Callable[[str], str]
) -> dict[tuple[str, str], str]:
    """By constant and device, the name of its copy there; a GPU has none of strings."""
    constants = {node.name: node for node in graph_def.node if node.op == "Const" and not node.input}
    copies: dict[tuple[str, str], str] = {}
    for node in graph_def.node:
        device = placement.get(node.name, "")
        for reference in node.input:
            if reference not in constants or not device or placement.get(reference) == device:
                continue
            if host_of(device) == device or not is_host_only(constants[reference]):
                number = sum(1 for source, _ in copies if source == reference)
                copies.setdefault((reference, device), f"{reference}/copy_{number}")
    return copies


class _PlacedFunctions:
    """The function library of the placed graph, grown as calls need it."""

    def __init__(self, library: Any, suffix: str, host_of: Callable[[str], str]) -> None:
        self._functions = {function.signature.name: function for function in library.function}
        self._suffix, self._host_of = suffix, host_of
        self._names: dict[tuple[str, str], str] = {}
        self.library = type(library)()
        self.library.gradient.extend(library.gradient)

    def place_calls(self, node: Any, device: str) -> None:
        """Point every function that `node` names to a copy that is placed on `device`."""
        for attribute in node.attr.values():
            for function in _function_attributes(attribute):
                if function.name in self._functions:
                    function.name = self._placed(function.name, device)
        if node.op in self._functions:
            node.op = self._placed(node.op, device)

    def _placed(self, name: str, device: str) -> str:
        key = (name, device)
        if key not in self._names:
            new_name = self._names[key] = f"{name}_{self._suffix}_{len(self._names)}"
            copy = type(self._functions[name])()
            copy.CopyFrom(self._functions[name])
            copy.signature.name = new_name
            for node in copy.node_def:
                node.device = self._host_of(device) if is_host_only(node) else device
                self.place_calls(node, device)
            self.library.function.append(copy)
        return self._names[key]


def _function_attributes(attribute: Any) -> Iterable[Any]:
    if attribute.HasField("func"):
        yield attribute.func
    if attribute.HasField("list"):
        yield from attribute.list.func
