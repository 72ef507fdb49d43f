"""The op graph: the ops of one step of the model, before they are costed or placed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

import msgspec
import networkx as nx

from cost_models.specs import AttributeValue, FunctionRun, OpSpec, TensorSpec

Value = TypeVar("Value")

_HANDLE = TensorSpec(shape=(), dtype="resource")


class Phase(StrEnum):
    """The part of a training step an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class VariableKind(StrEnum):
    """The kind of a variable: a trained parameter, a slot of the optimizer, or other state."""

    PARAMETER = "parameter"
    SLOT = "slot"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One output of one op: one producer, many consumers; it is sent once per device."""

    name: str
    producer: str
    spec: TensorSpec

    @property
    def size_bytes(self) -> int:
        """Size of the buffer in bytes; for a list of tensors, of theirs."""
        return self.spec.size_bytes


_DRAWS = ("Random", "TruncatedNormal", "Multinomial")
# Of an op graph, what does not depend on sizes.
_OF_WIRING = ("op", "variable", "consumers", "sources", "source_indices", "maker_indices")


RECURRENT = ("GRU", "LSTM")
"""Layers of which Keras makes one op of cuDNN where there is a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op of the step.

    Attributes:
        name: Name in the traced graph, unique.
        type: TensorFlow op type, e.g. `MatMul`.
        layer: Path of the innermost Keras layer whose call created the op (a backward op has its forward
            op's, an update op its variable's); empty for the loss and for work that belongs to no layer.
        phase: Forward, backward or update.
        colocation_group: Ops with the same non-empty group share a device: those of one variable, and
            every backward op with the forward op it differentiates.
        inputs: Names of the tensors read, in order.
        outputs: Names of the tensors produced, in order.
        control_inputs: Names of the ops that must finish first.
        variables: Names of the variables whose resource handle the op takes.
        attributes: The attributes a cost formula may need.
        host_only: True when TensorFlow has no GPU kernel for it, so that on a GPU plan it runs on the host.
        differentiates: Name of the forward op that a backward op belongs to, where TensorFlow says so.
        stateful: Whether TensorFlow's definition of the op says that it has state or effects. True of every op
            that takes a variable, reads included.
        takes_table: Whether it takes a lookup table, and so runs on the host, where tables are.
    """

    name: str
    type: str
    layer: str = ""
    phase: Phase = Phase.FORWARD
    colocation_group: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    host_only: bool = False
    differentiates: str = ""
    stateful: bool = False
    takes_table: bool = False

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(part in self.type for part in _DRAWS)

    @property
    def title(self) -> str:
        """A name for people: its layer, else the variable it takes, else its own name."""
        return self.layer or next(iter(self.variables), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable the step captures. `parameter` names the parameter a slot belongs to."""

    name: str
    spec: TensorSpec
    kind: VariableKind
    parameter: str = ""
    layer: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of the variable in bytes."""
        return self.spec.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A Keras layer as people know it: for reports and pictures, never for costs.

    `keeps_rows_apart`: Keras' own code computes each row of a batch by itself, except for statistics that it keeps.
    """

    path: str
    class_name: str
    output_shape: str = ""
    is_container: bool = False
    keeps_rows_apart: bool = False


@dataclass(frozen=True, kw_only=True)
class OpGraph:
    """All ops of one step, in a topological order, with every tensor and variable they touch.

    Attributes:
        inputs: Names of the tensors that the step is given.
        outputs: Names of the tensors that it returns.
        assumed_shapes: Names of tensors whose size depends on values and was assumed.
        runs: By op, the functions that it runs: the condition and the body of a loop with their trips, the branches of
            a conditional, what a call calls.
        passed_on: For outputs of loops that no trip changes, the input that they equal; for lists whose items are
            replaced one by one, the input that they replace.
        assumed_trips: By loop whose number of trips depends on values, the number that was assumed.
        mixing_layer: Title of the first layer whose results for a row of the batch depend on other rows, other than by
            statistics that it keeps; empty if there is none.
        mixing_op: Type of the op that brings rows together in it.

    Raises:
        ValueError: Listing every violation, when names repeat, a reference is unknown or the order is not
            topological.
    """

    name: str
    batch_size: int
    training: bool
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    variables: tuple[Variable, ...] = ()
    layers: tuple[Layer, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    assumed_shapes: tuple[str, ...] = ()
    runs: dict[str, tuple[FunctionRun, ...]] = field(default_factory=dict)
    passed_on: dict[str, str] = field(default_factory=dict)
    assumed_trips: dict[str, int] = field(default_factory=dict)
    mixing_layer: str = ""
    mixing_op: str = ""

    def __post_init__(self) -> None:
        problems = list(_violations(self))
        if problems:
            shown = "\n  ".join(problems[:20])
            raise ValueError(f"the op graph {self.name!r} is malformed ({len(problems)} problems):\n  {shown}")

    @cached_property
    def op(self) -> Mapping[str, Op]:
        """Ops by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def variable(self) -> Mapping[str, Variable]:
        """Variables by name."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the ops that read each tensor, each op once, in graph order."""
        readers: dict[str, dict[str, None]] = {tensor.name: {} for tensor in self.tensors}
        for op in self.ops:
            for name in op.inputs:
                readers[name][op.name] = None
        return {name: tuple(ops) for name, ops in readers.items()}

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the ops that each op takes a tensor from or waits for, each once."""
        tensor = self.tensor
        return {
            op.name: tuple(dict.fromkeys([*(tensor[name].producer for name in op.inputs), *op.control_inputs]))
            for op in self.ops
        }

    @cached_property
    def source_indices(self) -> tuple[tuple[int, ...], ...]:
        """The same as `sources`, by indices, in graph order."""
        index = {op.name: number for number, op in enumerate(self.ops)}
        return tuple(tuple(map(index.__getitem__, self.sources[op.name])) for op in self.ops)

    @cached_property
    def maker_indices(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the ops that each op takes a tensor from, each once."""
        index, tensor = {op.name: number for number, op in enumerate(self.ops)}, self.tensor
        return tuple(tuple({index[tensor[name].producer] for name in op.inputs}) for op in self.ops)

    @cached_property
    def specs(self) -> tuple[OpSpec, ...]:
        """Specs of ops for cost formulas, in graph order; equal specs are one object.

        Handles, which the graph keeps apart, come first as in TensorFlow.
        """
        distinct: dict[object, OpSpec] = {}
        specs = []
        for op in self.ops:
            spec = self._spec(op)
            key = op.name if spec.runs else (op.type, spec.inputs, spec.outputs, tuple(op.attributes.items()))
            specs.append(distinct.setdefault(key, spec))
        return tuple(specs)

    def _spec(self, op: Op) -> OpSpec:
        return OpSpec(
            type=op.type,
            inputs=(*(_HANDLE for _ in op.variables), *(self.tensor[name].spec for name in op.inputs)),
            outputs=tuple(self.tensor[name].spec for name in op.outputs),
            attributes=op.attributes,
            runs=self.runs.get(op.name, ()),
        )

    def resized(self, batch_size: int, tensors: Sequence[Tensor], alike: Sequence[int]) -> OpGraph:
        """The graph for another batch size, with the same tensors in other sizes.

        What does not depend on sizes is shared: its names and wiring are neither checked nor looked up again.

        Args:
            batch_size: The other number of rows.
            tensors: In the same order.
            alike: For each op, the index of the first op that has the same spec whatever the number of rows.
        """
        shared = {name: getattr(self, name) for name in _OF_WIRING}
        other = object.__new__(OpGraph)
        vars(other).update({attribute.name: getattr(self, attribute.name) for attribute in fields(self)}, **shared)
        vars(other).update(batch_size=batch_size, tensors=tuple(tensors))
        specs = {index: other._spec(self.ops[index]) for index in dict.fromkeys(alike)}
        vars(other).update(specs=tuple(map(specs.__getitem__, alike)))
        return other

    def depending_on(self, roots: Iterable[str], *, but: Container[str] = ()) -> frozenset[str]:
        """Names of the roots, and of the ops whose result depends on one; ops of the types `but` pass nothing on."""
        depending = set(roots)
        for op in self.ops:
            if op.type not in but and any(self.tensor[name].producer in depending for name in op.inputs):
                depending.add(op.name)
        return frozenset(depending)

    def of_specs(self, value: Callable[[OpSpec], Value]) -> tuple[Value, ...]:
        """A value for each op, in graph order, computed from its spec; once for equal specs."""
        distinct = {id(spec): spec for spec in self.specs}
        values = {key: value(spec) for key, spec in distinct.items()}
        return tuple(values[id(spec)] for spec in self.specs)

    @property
    def num_parameters(self) -> int:
        """Number of trained scalars."""
        return sum(v.spec.num_elements for v in self.variables if v.kind is VariableKind.PARAMETER)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the model's own forward computation.

        Covers op types, wiring and variable shapes inside the model's layers. Leaves out names (Keras numbers
        layers anew in every process), the batch size, loss and optimizer, so a plan survives a rebuild and a
        recompile. Of a recurrent layer it covers the variables alone: Keras makes one op of it where there is a GPU.
        """
        recurrent = [layer.path for layer in self.layers if layer.class_name in RECURRENT]
        whole = {path: f"layer {number}" for number, path in enumerate(recurrent)}
        return self._fingerprint({op.name: whole[o] for op in self.ops if (o := _owner(op.layer, whole)) is not None})

    @cached_property
    def op_fingerprint(self) -> str:
        """The fingerprint of plans of version 0.1.0, which covers the ops of recurrent layers too."""
        return self._fingerprint({})

    def _fingerprint(self, whole: Mapping[str, str]) -> str:
        """A digest of the forward ops of layers; ops that are `whole` count as one, under the name given there."""
        index: dict[str, int | str] = {}
        rows: list[object] = []
        wires_of: dict[str, set[tuple[int | str, int]]] = {name: set() for name in whole.values()}
        shapes_of: dict[str, set[tuple[tuple[int, ...], str]]] = {name: set() for name in whole.values()}
        for op in self.ops:
            if op.phase is not Phase.FORWARD or not op.layer:
                continue
            name = whole.get(op.name)
            index[op.name] = len(rows) if name is None else name
            wires = [self._wire(index, tensor) for tensor in op.inputs]
            shapes = [(self.variable[v].spec.shape, self.variable[v].spec.dtype) for v in op.variables]
            if name is None:
                rows.append((op.type, wires, shapes))
            else:
                wires_of[name] |= {wire for wire in wires if wire is not None and wire[0] != name}
                shapes_of[name] |= set(shapes)
        rows += [(name, sorted(wires_of[name], key=repr), sorted(shapes_of[name])) for name in wires_of]
        return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()[:16]

    def _wire(self, index: Mapping[str, int | str], tensor: str) -> tuple[int | str, int] | None:
        """The op that makes a tensor, by its index, and which output the tensor is; None for ops outside of layers."""
        producer = self.tensor[tensor].producer
        if producer not in index:
            return None
        maker = index[producer]
        return maker, 0 if isinstance(maker, str) else self.op[producer].outputs.index(tensor)

    def to_networkx(self) -> nx.DiGraph:
        """The graph for networkx: a node per op, `tensors` on data edges, none on control edges."""
        graph = nx.DiGraph(name=self.name)
        for op in self.ops:
            graph.add_node(op.name, op=op)
        for op in self.ops:
            for name in op.inputs:
                producer = self.tensor[name].producer
                if graph.has_edge(producer, op.name):
                    tensors = graph.edges[producer, op.name]["tensors"]
                    graph.edges[producer, op.name]["tensors"] = tuple(dict.fromkeys((*tensors, name)))
                else:
                    graph.add_edge(producer, op.name, tensors=(name,))
            for name in op.control_inputs:
                if not graph.has_edge(name, op.name):
                    graph.add_edge(name, op.name, tensors=())
        return graph


def _violations(graph: OpGraph) -> Iterable[str]:
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    variables = {variable.name for variable in graph.variables}
    if graph.batch_size < 1:
        yield f"batch_size is {graph.batch_size}, expected at least 1"
    if len(tensors) != len(graph.tensors):
        yield "two tensors share a name"
    if len(variables) != len(graph.variables):
        yield "two variables share a name"
    seen: set[str] = set()
    produced: set[str] = set()
    for op in graph.ops:
        if op.name in seen:
            yield f"two ops are named {op.name!r}"
        for name in op.inputs:
            if name not in tensors:
                yield f"op {op.name!r} reads the unknown tensor {name!r}"
            elif tensors[name].producer not in seen:
                yield f"op {op.name!r} reads {name!r} before its producer {tensors[name].producer!r}"
        for name in op.control_inputs:
            if name not in seen:
                yield f"op {op.name!r} waits for {name!r}, which does not come before it"
        for name in op.variables:
            if name not in variables:
                yield f"op {op.name!r} uses the unknown variable {name!r}"
        for name in op.outputs:
            if name not in tensors:
                yield f"op {op.name!r} produces the unknown tensor {name!r}"
            elif tensors[name].producer != op.name:
                yield f"tensor {name!r} names {tensors[name].producer!r} as its producer, not {op.name!r}"
        seen.add(op.name)
        produced.update(op.outputs)
    for name in sorted(tensors.keys() - produced):
        yield f"tensor {name!r} has no producer among the ops"
    for name in (*graph.inputs, *graph.outputs):
        if name not in tensors:
            yield f"the graph names the unknown tensor {name!r} as input or output"


def _owner(layer: str, paths: Collection[str]) -> str | None:
    """The path among these that a layer is, or lies in."""
    while layer and layer not in paths:
        layer = layer.rpartition("/")[0]
    return layer or None
