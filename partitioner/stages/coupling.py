"""Which layers compute something else when the batch is cut into microbatches, and which cannot be cut at all."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.op_graph import Op, OpGraph, Phase


@dataclass(frozen=True, slots=True)
class _Sentences:
    """What becomes of statistics, random numbers, other state and mixed rows of a layer when the batch is cut."""

    statistics: str
    random: str
    state: str
    mixing: str


_MICROBATCHES = _Sentences(
    "{layer} normalises each microbatch by itself and updates its moving averages once per microbatch",
    "{layer} draws anew for each microbatch",
    "{layer} updates its variables once per microbatch",
    "{layer} brings together the rows of a microbatch only",
)
_REPLICAS = _Sentences(
    "{layer} normalises each microbatch of each replica by itself, and its moving averages end as the replicas' mean",
    "{layer} draws other random numbers in each replica",
    "{layer} keeps the mean over replicas of its variables, or of whole numbers those of the first",
    "{layer} brings together the rows of a microbatch of one replica only",
)

_WRITES = ("Assign", "ResourceScatter")


def batch_coupling(graph: OpGraph, *, replicas: bool = False) -> tuple[str, ...]:
    """A sentence per layer whose results depend on how the batch is cut, in graph order; last the one that mixes rows.

    In training, such a layer writes variables in its forward pass or draws from a random state that TensorFlow keeps.
    What it writes tells the kinds apart: statistics depend on the step's arguments; the state of a random generator
    does not, and is made of integers. Metrics belong to no layer and do not count. With `replicas` the sentences tell
    of these.
    """
    say = _REPLICAS if replicas else _MICROBATCHES
    found: dict[str, str] = {}
    if graph.training:
        by_row = _depending_on_arguments(graph)
        for op in graph.ops:
            if op.phase is Phase.FORWARD and op.layer and (sentence := _sentence(graph, op, by_row, say)):
                found.setdefault(sentence, op.layer)
    if graph.mixing_layer and graph.mixing_layer not in found.values():
        found[say.mixing.format(layer=graph.mixing_layer)] = graph.mixing_layer
    return tuple(found)


def one_pass_at_a_time(graph: OpGraph) -> str:
    """Why only one microbatch can be on its way from its forward pass to its backward pass; empty if many can.

    A `tf.py_function` keeps what its gradient needs in one place, which the forward pass of the next microbatch takes.
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
    """Names of the variables that random ops of the forward pass draw from, whole numbers that it counts on."""
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    states = {name for name in written_states(graph) if "int" in graph.variable[name].spec.dtype}
    read: dict[str, frozenset[str]] = {}
    found: set[str] = set()
    for op in forward:
        sources = [read.get(name, frozenset()) for name in op.inputs]
        known = states.intersection(op.variables).union(*sources)
        read |= dict.fromkeys(op.outputs, frozenset(known))
        if op.draws:
            found |= known
    return frozenset(found)


def _sentence(graph: OpGraph, op: Op, by_row: frozenset[str], say: _Sentences) -> str:
    if op.variables and op.type.startswith(_WRITES):
        if any(graph.tensor[name].producer in by_row for name in op.inputs):
            return say.statistics.format(layer=op.layer)
        integers = all("int" in graph.variable[name].spec.dtype for name in op.variables)
        return (say.random if integers else say.state).format(layer=op.layer)
    if op.stateful and op.draws:
        return say.random.format(layer=op.layer)
    return ""


def _depending_on_arguments(graph: OpGraph) -> frozenset[str]:
    """Names of the ops whose result depends on an argument of the step."""
    found = {graph.tensor[name].producer for name in graph.inputs}
    for op in graph.ops:
        if any(graph.tensor[name].producer in found for name in op.inputs):
            found.add(op.name)
    return frozenset(found)
