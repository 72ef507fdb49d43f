"""Layers whose results change when the batch is cut into microbatches, and steps that cannot be cut."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.op_graph import Op, OpGraph, Phase
from partitioner.spelling import listed


@dataclass(frozen=True, slots=True)
class _Sentences:
    """Sentences on how a cut batch changes statistics, random numbers, other state and mixed rows, without layers."""

    statistics: str
    random: str
    state: str
    mixing: str


_MICROBATCHES = _Sentences(
    statistics="each microbatch is normalised by itself and updates moving averages once",
    random="random numbers are drawn anew for each microbatch",
    state="variables are updated once per microbatch",
    mixing="only the rows of a microbatch come together",
)
_REPLICAS = _Sentences(
    statistics="each microbatch of each replica is normalised by itself, and moving averages end as the replicas' mean",
    random="random numbers differ between replicas",
    state="variables are kept as the mean over replicas, whole numbers as those of the first",
    mixing="only the rows of a microbatch of one replica come together",
)

_WRITES = ("Assign", "ResourceScatter")


def batch_coupling(graph: OpGraph, *, replicas: bool = False) -> tuple[str, ...]:
    """A sentence per kind of result that depends on how the batch is cut, with the layers in graph order; last, a layer
    that mixes rows, with the type of the op that does.

    Such a layer writes variables in its forward pass or draws from a random state that TensorFlow keeps.
    The written variables differ by kind: statistics depend on the step's arguments; the state of a random generator
    does not, and random ops draw from it. Metrics belong to no layer and do not count. With `replicas` the sentences
    are about replicas.
    """
    say = _REPLICAS if replicas else _MICROBATCHES
    layers: dict[str, dict[str, None]] = {}
    by_row = graph.depending_on(graph.tensor[name].producer for name in graph.inputs)
    drawn = random_states(graph)
    for op in graph.ops:
        if op.phase is Phase.FORWARD and op.layer and (sentence := _sentence(graph, op, by_row, drawn, say)):
            layers.setdefault(sentence, {})[op.layer] = None
    if graph.mixing_layer and not any(graph.mixing_layer in named for named in layers.values()):
        named = f"{graph.mixing_layer}: {graph.mixing_op}" if graph.mixing_op else graph.mixing_layer
        layers[say.mixing] = {named: None}
    return tuple(f"{sentence} ({listed(list(named))})" for sentence, named in layers.items())


def one_pass_at_a_time(graph: OpGraph) -> str:
    """Why each microbatch must end its backward pass before the next one starts; empty if it need not.

    A `tf.py_function` keeps the inputs of its gradient in one place, which the next forward pass overwrites.
    """
    for op in graph.ops:
        if op.type == "EagerPyFunc" and op.phase is Phase.BACKWARD:
            return f"the gradient of tf.py_function in {op.title} needs that no other forward pass came between"
    return ""


def written_states(graph: OpGraph) -> frozenset[str]:
    """Names of the variables that the forward pass writes."""
    forward = (op for op in graph.ops if op.phase is Phase.FORWARD and op.type.startswith(_WRITES))
    return frozenset(name for op in forward for name in op.variables)


def random_states(graph: OpGraph) -> frozenset[str]:
    """Names of the variables that random ops of the forward pass draw from: integers that it increments."""
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    states = {name for name in written_states(graph) if "int" in graph.variable[name].spec.dtype}
    read: dict[str, frozenset[str]] = {}
    drawn: set[str] = set()
    for op in forward:
        sources = [read.get(name, frozenset()) for name in op.inputs]
        here = states.intersection(op.variables).union(*sources)
        read |= dict.fromkeys(op.outputs, frozenset(here))
        if op.draws:
            drawn |= here
    return frozenset(drawn)


def _sentence(graph: OpGraph, op: Op, by_row: frozenset[str], drawn: frozenset[str], say: _Sentences) -> str:
    if op.variables and op.type.startswith(_WRITES):
        if any(graph.tensor[name].producer in by_row for name in op.inputs):
            return say.statistics
        return say.random if drawn.issuperset(op.variables) else say.state
    if op.stateful and op.draws:
        return say.random
    return ""
