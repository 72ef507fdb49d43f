"""Small op graphs made by hand, with round costs: an op is named by what it takes, a tensor is `op:0`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from cost_models.hardware import Device, Link
from cost_models.specs import OpCost, TensorSpec
from cost_models.topology import Topology, TopologyDevice
from partitioner.ir.costed import CostedGraph
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import Layer, Op, OpGraph, Phase, Tensor, Variable, VariableKind
from partitioner.ir.requirements import ResolvedConstraint
from partitioner.ir.schedule import Schedule
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.pipeline.search_space import PREFERENCE, PipelineSearchSpace
from partitioner.stages.cut import cut
from partitioner.stages.roles import Roles, find_roles
from partitioner.stages.schedules import ScheduleKind

# Runs share a machine with others: examples are few, the same in every run, and never timed.
settings.register_profile("planner", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("planner")

SECOND = 2**10
"""FLOPs that a test device does in a second; a power of two, so that times are exact floats."""


def device(speed: float = 1.0) -> Device:
    """A device that does `speed * SECOND` FLOP/s and moves bytes in no time worth mentioning."""
    return Device(
        name=f"test-{speed:g}",
        title="test",
        peak_flops={"float32": speed * SECOND},
        memory_bytes=2**40,
        memory_bandwidth_bytes_per_second=2.0**60,
        launch_overhead_seconds=0.0,
        source="made up",
        date="2026",
    )


def link(latency_seconds: float = 0.25, bandwidth_bytes_per_second: float = 256.0) -> Link:
    """A link whose times are exact floats; by default 256 bytes take 0.25 s + 1 s."""
    return Link(
        name="wire",
        latency_seconds=latency_seconds,
        bandwidth_bytes_per_second=bandwidth_bytes_per_second,
        source="made up",
        date="2026",
    )


def topology(
    count: int = 2,
    *,
    memory_bytes: int | Sequence[int] = 2**40,
    wire: Link | None = None,
    speeds: Sequence[float] | None = None,
    kind: str = "GPU",
    tasks: Sequence[int] | None = None,
) -> Topology:
    """`count` devices joined by one kind of link, of this process or of workers."""
    limits = [memory_bytes] * count if isinstance(memory_bytes, int) else memory_bytes
    placed = [
        TopologyDevice(
            name=f"/job:{'worker' if tasks else 'localhost'}/replica:0/task:{task}/device:{kind}:{index}",
            device=device(speed),
            memory_bytes=limit,
        )
        for index, (limit, speed, task) in enumerate(
            zip(limits, speeds or [1.0] * count, tasks or [0] * count, strict=True)
        )
    ]
    return Topology.uniform(placed, wire or link())


@dataclass
class Builder:
    """Adds ops one by one; `costed` puts them on a topology. Sizes are bytes and multiples of 4."""

    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    costs: list[OpCost] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    def add(
        self,
        name: str,
        seconds: float = 0.0,
        *reads: str,
        size_bytes: int = 256,
        type: str = "Relu",
        layer: str = "",
        phase: Phase = Phase.FORWARD,
        group: str = "",
        after: Sequence[str] = (),
        variables: Sequence[str] = (),
        host_only: bool = False,
        differentiates: str = "",
    ) -> str:
        """An op that takes `seconds` on a device of speed 1 and makes one tensor; `reads` name ops."""
        self.ops.append(
            Op(
                name=name,
                type=type,
                layer=layer,
                phase=phase,
                colocation_group=group,
                inputs=tuple(f"{source}:0" for source in reads),
                outputs=(f"{name}:0",),
                control_inputs=tuple(after),
                variables=tuple(variables),
                host_only=host_only,
                differentiates=differentiates,
                stateful=bool(variables),
            )
        )
        spec = TensorSpec(shape=(size_bytes // 4, 1), dtype="float32")
        self.tensors.append(Tensor(name=f"{name}:0", producer=name, spec=spec))
        self.costs.append(OpCost(flops=round(seconds * SECOND)))
        return name

    def variable(self, name: str, size_bytes: int, kind: VariableKind = VariableKind.PARAMETER, layer: str = "") -> str:
        """A variable; ops name it to use it."""
        spec = TensorSpec(shape=(size_bytes // 4, 1), dtype="float32")
        self.variables.append(Variable(name=name, spec=spec, kind=kind, layer=layer))
        return name

    def graph(self, outputs: Sequence[str] = (), batch_size: int = 8) -> OpGraph:
        """The graph; its layers are those that ops name."""
        layers = dict.fromkeys(op.layer for op in self.ops if op.layer)
        return OpGraph(
            name="made",
            batch_size=batch_size,
            training=any(op.phase is not Phase.FORWARD for op in self.ops),
            ops=tuple(self.ops),
            tensors=tuple(self.tensors),
            variables=tuple(self.variables),
            layers=tuple(Layer(path=path, class_name="Dense") for path in layers),
            outputs=tuple(f"{name}:0" for name in outputs),
        )

    def costed(self, on: Topology | None = None, outputs: Sequence[str] = ()) -> CostedGraph:
        """The graph with its costs on a topology (two alike devices by default)."""
        return CostedGraph(graph=self.graph(outputs), costs=tuple(self.costs), topology=on or topology())


def chain(seconds: Sequence[float], sizes_bytes: Sequence[int], parameters_bytes: Sequence[int] = ()) -> Builder:
    """Ops `op0` -> `op1` -> ..., each in a layer of its own; `sizes_bytes[i]` flows out of op i."""
    made = Builder()
    for index, (taken, size) in enumerate(zip(seconds, sizes_bytes, strict=True)):
        layer = f"layer{index}"
        used = []
        if parameters_bytes and parameters_bytes[index]:
            used = [made.variable(f"w{index}", parameters_bytes[index], layer=layer)]
        before = [f"op{index - 1}"] if index else []
        made.add(f"op{index}", taken, *before, size_bytes=size, layer=layer, variables=used)
    return made


def training_chain(num_layers: int, *, parameter_bytes: int, slot_bytes: int, saved_bytes: int) -> Builder:
    """A training step: every layer saves its output, and has a gradient and an update. One second per op."""
    made = Builder()
    made.add("x", 0.0, size_bytes=256, type="Placeholder")
    before = "x"
    for i in range(num_layers):
        layer = f"layer{i}"
        made.variable(f"w{i}", parameter_bytes, layer=layer)
        if slot_bytes:
            made.variable(f"m{i}", slot_bytes, VariableKind.SLOT, layer=layer)
        before = made.add(f"f{i}", 1.0, before, size_bytes=saved_bytes, layer=layer, variables=[f"w{i}"], group=f"g{i}")
    before = made.add("loss", 1.0, before, size_bytes=256)
    for i in reversed(range(num_layers)):
        layer, kept = f"layer{i}", f"f{i}"
        back = made.add(f"b{i}", 1.0, before, kept, size_bytes=256, layer=layer, phase=Phase.BACKWARD, group=f"g{i}")
        gradient = made.add(
            f"d{i}", 1.0, before, kept, size_bytes=parameter_bytes, layer=layer, phase=Phase.BACKWARD,
            group=f"g{i}",
        )  # fmt: skip
        slots = [f"m{i}"] if slot_bytes else []
        made.add(
            f"u{i}", 1.0, gradient, size_bytes=0, layer=layer, phase=Phase.UPDATE,
            variables=[f"w{i}", *slots], group=f"g{i}",
        )  # fmt: skip
        before = back
    return made


@st.composite
def random_graphs(draw: st.DrawFn, max_ops: int = 8, training: bool = True, free_ops: bool = True) -> Builder:
    """Any small graph: costs 0-4 s, some layers and colocation groups that interleave, variables, phases."""
    seconds = [*([0.0, 0.0] if free_ops else []), 0.25, 0.5, 1.0, 4.0]
    made = Builder()
    count = draw(st.integers(1, max_ops))
    phases = sorted(draw(st.lists(st.integers(0, 2 if training else 0), min_size=count, max_size=count)))
    num_variables = draw(st.integers(0, 3))
    for v in range(num_variables):
        kind = draw(st.sampled_from(list(VariableKind)))
        made.variable(f"v{v}", 4 * draw(st.integers(0, 300)), kind, layer=draw(st.sampled_from(["", "A", "B"])))
    owner: dict[str, str] = {}
    for index in range(count):
        earlier = [f"o{i}" for i in range(index)]
        reads = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        after = draw(st.lists(st.sampled_from(earlier), max_size=1)) if earlier else []
        used = (
            draw(st.lists(st.sampled_from([f"v{v}" for v in range(num_variables)]), max_size=1))
            if num_variables
            else []
        )
        group = draw(st.sampled_from(["", "", "", "g", "h"]))
        for variable in used:  # ops of one variable are one colocation group, as capture promises
            group = owner.setdefault(variable, group or f"of {variable}")
        made.add(
            f"o{index}",
            draw(st.sampled_from(seconds)),
            *reads,
            size_bytes=4 * draw(st.sampled_from([0, 1, 32, 64, 256])),
            layer=draw(st.sampled_from(["", "", "A", "B", "C"])),
            phase=list(Phase)[phases[index]],
            group=group,
            after=after,
            variables=used,
        )
    return made


def on(costed: CostedGraph, **places: int) -> Mapping[str, int]:
    """A placement: every op on device 0 but for those named."""
    return {op.name: places.get(op.name, 0) for op in costed.graph.ops}


def pinned(**places: int) -> tuple[ResolvedConstraint, ...]:
    """A constraint for each op named: the device that it must be on."""
    return tuple(
        ResolvedConstraint(text=f"pin {op}=GPU:{device}", ops=(op,), devices=frozenset([device]))
        for op, device in places.items()
    )


def pipeline(
    num_stages: int,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    error: float = 0.0,
    saved_bytes: int | Sequence[int] = 1024,
    gradient_bytes: int | Sequence[int] = 2048,
    parameter_bytes: int = 4096,
) -> Builder:
    """A training step as capture gives it: stage i reads `w{i}`, and saves its input and output for its backward.

    `f{i}` takes `forward` seconds, `d{i}` (the gradient of `w{i}`) `backward` seconds; `b{i}` (of the input, 256 bytes)
    takes `error` seconds. The batch is `x`, 256 bytes.
    """
    made = Builder()
    before = made.add("x", 0.0, type="Placeholder", size_bytes=256)
    for i in range(num_stages):
        layer = f"layer{i}"
        made.variable(f"w{i}", parameter_bytes, layer=layer)
        made.add(
            f"r{i}", 0.0, type="ReadVariableOp", size_bytes=parameter_bytes, layer=layer, variables=[f"w{i}"],
            group=f"w{i}",
        )  # fmt: skip
        saved = saved_bytes if isinstance(saved_bytes, int) else saved_bytes[i]
        before = made.add(f"f{i}", forward, before, f"r{i}", size_bytes=saved, layer=layer)
    for i in reversed(range(num_stages)):
        layer, entered = f"layer{i}", f"f{i - 1}" if i else "x"
        behind = [f"b{i + 1}"] if i + 1 < num_stages else []
        back = {"phase": Phase.BACKWARD, "layer": layer, "differentiates": f"f{i}"}
        size = gradient_bytes if isinstance(gradient_bytes, int) else gradient_bytes[i]
        gradient = made.add(f"d{i}", backward, *behind, f"f{i}", entered, size_bytes=size, **back)
        if i:
            made.add(f"b{i}", error, *behind, f"f{i}", size_bytes=256, **back)
        made.add(
            f"u{i}", 0.0, gradient, size_bytes=0, layer=layer, phase=Phase.UPDATE, variables=[f"w{i}"], group=f"w{i}"
        )
    return made


def with_rows(costed: CostedGraph, rows: int) -> CostedGraph:
    """A `pipeline` or `random_steps` for fewer rows: seconds and activations shrink, parameters do not."""
    graph = costed.graph
    share = rows / graph.batch_size
    costs = [
        cost if op.phase is Phase.UPDATE else replace(cost, flops=round(cost.flops * share))
        for op, cost in zip(graph.ops, costed.costs, strict=True)
    ]
    tensors = [
        tensor
        if tensor.producer[0] in "rdu" or tensor.producer == "loss"
        else replace(tensor, spec=TensorSpec(shape=(round(tensor.spec.shape[0] * share), 1), dtype="float32"))
        for tensor in graph.tensors
    ]
    return replace(costed, graph=replace(graph, tensors=tuple(tensors), batch_size=rows), costs=tuple(costs))


def microbatching(costed: CostedGraph, *counts: int, adding: bool = False, **choices: Any) -> PipelineSearchSpace:
    """Choices for a `pipeline` or `random_steps`; every schedule unless told otherwise.

    It takes no time to add the gradients of microbatches, unless `adding`.
    """
    graph = costed.graph

    def programs(execution: Execution) -> StagePrograms:
        return cut(
            whole_step(graph),
            execution.placement,
            devices=execution.stage_devices,
            recompute=execution.recompute,
            rerun=execution.rerun,
            parts_backward=ScheduleKind(execution.schedule).parts_backward,
        )

    fields = {
        "schedules": PREFERENCE,
        "costed_for": lambda rows, sums: replace(with_rows(costed, rows), sums=sums if adding else ()),
        "programs": programs,
    }
    return PipelineSearchSpace(counts=counts, **{**fields, **choices})


def cut_up(
    costed: CostedGraph,
    placement: Mapping[str, int],
    recompute: Collection[int] | None = (),
    *,
    parts_backward: bool = False,
) -> StagePrograms:
    """The stage programs of a placed graph whose sinks are all wanted."""
    names = [placed.name for placed in costed.topology.devices]
    placed_on = {name: names[device] for name, device in placement.items()}
    return cut(whole_step(costed.graph), placed_on, devices=names, recompute=recompute, parts_backward=parts_backward)


def whole_step(graph: OpGraph) -> Roles:
    """The roles of a graph whose sinks are all wanted."""
    sinks = [op for op in graph.ops if not any(graph.consumers[name] for name in op.outputs)]
    return find_roles(
        graph,
        results=[name for op in sinks if op.phase is not Phase.UPDATE for name in op.outputs],
        roots=[op.name for op in sinks if op.phase is Phase.UPDATE],
    )


@st.composite
def random_steps(draw: st.DrawFn, max_layers: int = 6) -> Builder:
    """A small training step that can be cut: layers that read the batch or earlier ones, backwards that mirror them."""
    made = Builder()
    made.add("x", 0.0, type="Placeholder", size_bytes=256)
    count = draw(st.integers(1, max_layers))
    reads = [
        draw(st.lists(st.sampled_from(["x", *(f"f{j}" for j in range(i))]), min_size=1, max_size=2, unique=True))
        for i in range(count)
    ]
    trained = [draw(st.booleans()) for _ in range(count)]
    sizes = [4 * draw(st.sampled_from([1, 64, 256])) for _ in range(count)]
    taken = st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0])
    for i in range(count):
        layer, used = f"layer{i}", list(reads[i])
        if trained[i]:
            made.variable(f"w{i}", 4 * draw(st.integers(1, 300)), layer=layer)
            used.append(made.add(f"r{i}", 0.0, type="ReadVariableOp", layer=layer, variables=[f"w{i}"], group=f"w{i}"))
        made.add(f"f{i}", draw(taken), *used, size_bytes=sizes[i], layer=layer)
    ends = [f"f{i}" for i in range(count) if not any(f"f{i}" in sources for sources in reads)]
    made.add("loss", draw(taken), *ends, size_bytes=4)
    for i in reversed(range(count)):
        errors = [f"b{j}" for j in range(i + 1, count) if f"f{i}" in reads[j]] or ["loss"]
        back = {"phase": Phase.BACKWARD, "layer": f"layer{i}", "differentiates": f"f{i}"}
        made.add(f"b{i}", draw(taken), *errors, f"f{i}", size_bytes=sizes[i], **back)
        if trained[i]:
            made.add(f"d{i}", draw(taken), *errors, *reads[i], size_bytes=made.variables[-1].size_bytes, **back)
            made.add(
                f"u{i}", draw(taken), f"d{i}", size_bytes=0, layer=f"layer{i}", phase=Phase.UPDATE,
                variables=[f"w{i}"], group=f"w{i}",
            )  # fmt: skip
    return made


@st.composite
def placed_steps(
    draw: st.DrawFn, num_devices: int = 3, kind: str = "GPU", tasks: Sequence[int] | None = None
) -> tuple[CostedGraph, dict[str, int]]:
    """A random step with its layers placed at random, on devices and links that are alike or not."""
    made = draw(random_steps())
    speeds = draw(st.sampled_from([[1.0, 1.0, 1.0], [1.0, 2.0, 0.5]]))[:num_devices]
    wire = draw(st.sampled_from([link(), link(0.0)]))
    layers = dict.fromkeys(op.layer for op in made.ops)
    device = {layer: draw(st.integers(0, num_devices - 1)) for layer in layers}
    costed = made.costed(topology(num_devices, speeds=speeds, wire=wire, kind=kind, tasks=tasks))
    return costed, {op.name: device[op.layer] for op in made.ops}


def largest_peak(schedule: Schedule) -> int:
    """The most bytes that a device holds at once."""
    return max(use.total_bytes for use in schedule.peak.values())
