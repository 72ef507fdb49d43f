"""Costs of a call of a stage program: seconds on its device, and bytes while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cost_models.gpu_seconds import queued_seconds
from partitioner.ir.buffer_walk import Walk, walk
from partitioner.ir.costed import CostedGraph
from partitioner.ir.devices import DeviceName
from partitioner.ir.run_order import run_orders
from partitioner.ir.stage_programs import ProgramKind, StageProgram, StagePrograms
from partitioner.planner.model.buffers import buffers_of
from partitioner.planner.model.kernel_memory import scratch_of_ops, sizes_of_tensors
from partitioner.planner.simulate.memory_use import largest_tensors, most_over_time
from partitioner.stages.run_ahead import Order, keeps_order, order_among, run_ahead_limits

OP_SECONDS = 2.5e-6
"""To dispatch an op inside a function, measured on a 2-core x86 virtual machine, where the device's launch overhead is
not larger. Only stage programs are charged with it: it makes very small microbatches unprofitable."""
_PARTS = 8
"""Parts of a call, each with its peak bytes: tensors that are sent after a call, or received for the next call, rarely
overlap with the peak of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """One call of a stage program at the batch size of the costed graph.

    Attributes:
        seconds: On its device, dispatch included.
        host_seconds: Until its host has given the device all of it.
        received_bytes: Of inputs that programs on other devices make.
        output_bytes: Of outputs, whether or not they have a buffer of their own.
        transient_bytes: Peak of its own buffers, op by op as devices run them; inputs not included.
        over_time: Peak of its own buffers in each of equal parts of a call.
        largest: Its largest own buffers at the peak, as tensors and bytes, at most five.
        left_bytes: Of its own buffers that remain when it ends, because they hold outputs.
        owner: For each output, the tensor whose buffer holds it: an output, an input, or None for a variable.
    """

    seconds: float
    host_seconds: float
    received_bytes: int
    output_bytes: int
    transient_bytes: int
    over_time: tuple[int, ...]
    largest: tuple[tuple[str, int], ...]
    left_bytes: int
    owner: Mapping[str, str | None]


class StageCosts:
    """Costs of stage programs of one graph at one batch size, each computed once."""

    def __init__(self, costed: CostedGraph) -> None:
        self.costed = costed
        self._index = {placed.name: index for index, placed in enumerate(costed.topology.devices)}
        self.kinds = [DeviceName.parse(placed.name).type for placed in costed.topology.devices]
        self._scratch = {kind: scratch_of_ops(costed, kind) for kind in dict.fromkeys(self.kinds)}
        self._bytes = {kind: sizes_of_tensors(costed, kind) for kind in self._scratch}
        self._passes_on = buffers_of(costed).passes_on
        self._working = frozenset(
            op.name for op, cost in zip(costed.graph.ops, costed.costs, strict=True) if cost.flops or cost.moved_bytes
        )
        self._seconds = {op.name: row for op, row in zip(costed.graph.ops, costed.seconds, strict=True)}
        self._dispatch_seconds = [dispatch_seconds(costed, device) for device in range(len(self.kinds))]
        self._sums = frozenset(costed.sums)
        self._costs: dict[tuple[object, ...], ProgramCost] = {}

    def all(self, programs: StagePrograms) -> list[ProgramCost]:
        """The costs of `programs.programs`, in this order."""
        made_on = {name: other.device for other in programs.programs for name in other.outputs}
        costs = []
        for program in programs.programs:
            received = tuple(n for n in program.inputs if made_on.get(n, program.device) != program.device)
            held = order_among(programs.stages)
            key = (program.device, program.ops, program.outputs, received, held)
            if key not in self._costs:
                self._costs[key] = self._of(program, received, programs.aliases, held)
            costs.append(self._costs[key])
        return costs

    def device(self, name: str) -> int:
        """Index of a device by name; a program on the host of a GPU is taken to run on the first device."""
        return self._index.get(name, 0)

    def size_bytes(self, tensor: str, device: int) -> int:
        """Bytes that a tensor's buffer takes on a device."""
        return self._bytes[self.kinds[device]][tensor]

    def _of(
        self, program: StageProgram, received: Iterable[str], aliases: Mapping[str, str], held: Order
    ) -> ProgramCost:
        device, tensor = self.device(program.device), self.costed.graph.tensor
        roots = self._roots(program, aliases)
        walks = [
            (
                walk(
                    self.costed.graph.op,
                    order,
                    given=frozenset(program.inputs),
                    kept=program.outputs,
                    roots=roots,
                    aliases=aliases,
                    size_bytes=self._bytes[self.kinds[device]].__getitem__,
                    scratch_bytes=self._scratch[self.kinds[device]],
                ),
                order,
            )
            for order in self._orders(program, aliases, held)
        ]
        worst, order = max(walks, key=lambda walk_and_order: walk_and_order[0].most_bytes)
        return ProgramCost(
            seconds=self._call_seconds(program, device),
            host_seconds=self._host_seconds(program, device),
            received_bytes=sum(tensor[name].size_bytes for name in received),
            output_bytes=sum(tensor[name].size_bytes for name in program.outputs),
            transient_bytes=worst.most_bytes,
            over_time=self._over_time(worst, order, device),
            largest=tuple((held.tensor, held.size_bytes) for held in largest_tensors(worst.alive())),
            left_bytes=worst.left_bytes,
            owner=_owners(program, roots),
        )

    def _call_seconds(self, program: StageProgram, device: int) -> float:
        # Replicas that share a device share its time.
        times = 1 if program.kind is ProgramKind.UPDATE else self.costed.num_sharing(device)
        own = [self._seconds[name][device] for name in program.ops]
        call = self._starting_seconds(program, device)
        if host := self.costed.dispatch_seconds[device]:
            # The host of a GPU starts the next op while the GPU is busy.
            return times * call + queued_seconds(filter(None, own), host)
        return times * (call + len(program.ops) * self._dispatch_seconds[device]) + sum(own)

    def _host_seconds(self, program: StageProgram, device: int) -> float:
        """A call, and for each op that runs what starting it takes: of a kernel that XLA made, its launch."""
        each = (
            self.costed.dispatch_seconds[device] or self.costed.topology.devices[device].device.launch_overhead_seconds
        )
        return self._starting_seconds(program, device) + each * sum(self._seconds[n][device] > 0 for n in program.ops)

    def _starting_seconds(self, program: StageProgram, device: int) -> float:
        # A total is given for each gradient that is added to one.
        num_tensors = len(program.inputs) + len(program.outputs) + len(self._sums.intersection(program.outputs))
        return self.costed.call(device).of(num_tensors)

    def _op_seconds(self, name: str, device: int) -> float:
        return self._seconds[name][device] + self._dispatch_seconds[device]

    def _over_time(self, walked: Walk, order: Sequence[str], device: int) -> tuple[int, ...]:
        changes: dict[int, list[int]] = {}
        for index, _, size in walked.changes:
            changes.setdefault(index, []).append(size)
        moments, seconds, held = [], 0.0, 0
        for index, name in enumerate(order):
            most = held
            for size in changes.get(index, ()):
                held += size
                most = max(most, held)
            moments.append((seconds, most))
            seconds += self._op_seconds(name, device)
        return most_over_time(moments, seconds, num_parts=_PARTS) or (walked.most_bytes,)

    def _roots(self, program: StageProgram, aliases: Mapping[str, str]) -> dict[str, str | None]:
        """For the tensors of a program without a buffer of their own, the tensor that owns the buffer."""
        op = self.costed.graph.op
        roots: dict[str, str | None] = {}
        for name in program.ops:
            for output in op[name].outputs:
                if output in self._passes_on:
                    source = self._passes_on[output]
                    source = aliases.get(source, source) if source is not None else None
                    roots[output] = roots.get(source, source) if source is not None else None
        return roots

    def _orders(self, program: StageProgram, aliases: Mapping[str, str], held: Order) -> Iterator[list[str]]:
        """The orders in which its device may run the program's ops."""
        graph = self.costed.graph
        inside = set(program.ops).difference(graph.tensor[name].producer for name in program.inputs)
        needs = {}
        for name in program.ops:
            made = (graph.tensor[aliases.get(read, read)].producer for read in graph.op[name].inputs)
            needs[name] = inside.intersection([*made, *graph.op[name].control_inputs])
        is_cpu = keeps_order(program.device)
        if is_cpu:
            limits = run_ahead_limits(graph, program.ops, aliases=aliases, given=program.inputs, order=held)
            needs = {name: sources.union(limits.get(name, ())) for name, sources in needs.items()}
        return run_orders(program.ops, needs, self._working.intersection(program.ops) if is_cpu else ())


def dispatch_seconds(costed: CostedGraph, device: int) -> float:
    """Seconds that starting an op takes a device besides what is in the seconds of the op."""
    if device in costed.measured or costed.fusion is not None:
        return 0.0
    return max(0.0, OP_SECONDS - costed.topology.devices[device].device.launch_overhead_seconds)


def _owners(program: StageProgram, roots: Mapping[str, str | None]) -> dict[str, str | None]:
    """For each output, the owner of its buffer: the first output in it, an input, or None for a variable."""
    first: dict[str, str] = {}
    owners: dict[str, str | None] = {}
    for name in program.outputs:
        root = roots.get(name, name)
        owners[name] = root if root is None or root in program.inputs else first.setdefault(root, name)
    return owners
