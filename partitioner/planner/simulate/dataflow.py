"""Dataflow between stage programs: which values cross links, and which buffers hold the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from partitioner.ir.stage_programs import Gather, StageProgram, StagePrograms
from partitioner.planner.simulate.memory_use import largest_tensors
from partitioner.planner.simulate.program_costs import ProgramCost, StageCosts
from partitioner.stages.actions import KIND_OF_CALLS
from partitioner.stages.relays import relays


class Value(NamedTuple):
    """A tensor of each microbatch, or of the whole step (made by a program that runs once, or gathered)."""

    tensor: str
    whole: bool


@dataclass(slots=True, kw_only=True)
class Wires:
    """Inputs and outputs of one program; a buffer is named by a value in it.

    Attributes:
        cost: Of one call.
        device: Index of its device.
        per_microbatch: Whether it runs for every microbatch.
        arrives: Inputs that are made on other devices.
        reads: Buffers on its own device, received ones included.
        before: Values of the microbatch before, which a forward program carries on.
        makes: Bytes of the buffers of its outputs; sums of gradients are in `sums`.
        sums: Bytes of the sums of gradients over the microbatches.
        sends: Values with the devices that they go to in the end, and the buffer they are read from.
    """

    cost: ProgramCost
    device: int
    per_microbatch: bool
    arrives: list[Value] = field(default_factory=list)
    reads: list[Value] = field(default_factory=list)
    before: list[Value] = field(default_factory=list)
    makes: dict[Value, int] = field(default_factory=dict)
    sums: dict[Value, int] = field(default_factory=dict)
    sends: list[tuple[Value, tuple[int, ...], Value | None]] = field(default_factory=list)


class Dataflow:
    """Wires of all programs of a step at one batch size.

    Attributes:
        handed: The devices to which a device sends a value, once it has it.
    """

    def __init__(self, programs: StagePrograms, costs: StageCosts) -> None:
        self.programs, self.costs = programs, costs
        self.all: tuple[StageProgram, ...] = tuple(programs.programs)
        self.maker = {name: index for index, program in enumerate(self.all) for name in program.outputs}
        self.wires = [
            Wires(cost=cost, device=costs.device(program.device), per_microbatch=_is_repeated(program))
            for program, cost in zip(self.all, costs.all(programs), strict=True)
        ]
        self.carried = {
            state.read: state.written for state in programs.states if state.read and self._maker_repeats(state.written)
        }
        self.targets = self._find_targets()
        self.bundle = self._find_bundles()
        self._relay = {
            (name, costs.device(reader)): costs.device(relay)
            for (name, reader), relay in relays(programs.repeated).items()
        }
        self.handed: dict[tuple[Value, int], list[int]] = {}
        for index in range(len(self.all)):
            self._wire(index)

    @property
    def hands_on(self) -> bool:
        """Whether a device sends on what it has received."""
        return bool(self._relay)

    def size_bytes(self, value: Value, device: int) -> int:
        """Bytes of a value's own buffer on a device, without the rest of its bundle."""
        return self.costs.size_bytes(value.tensor, device)

    def named(self, value: Value, size_bytes: int) -> Sequence[tuple[str, int]]:
        """The tensors in an entry of `size_bytes`, with the bytes of each; of a bundle, the largest tensors."""
        return self._named.get(value) or [(value.tensor, size_bytes)]

    @cached_property
    def _named(self) -> Mapping[Value, Sequence[tuple[str, int]]]:
        members: dict[Value, list[tuple[str, int]]] = {}
        for value, bundle in self.bundle.items():
            device = self.wires[self.maker[value.tensor]].device
            members.setdefault(bundle, []).append((value.tensor, self.size_bytes(value, device)))
        return {
            bundle: [(held.tensor, held.size_bytes) for held in largest_tensors(buffers)]
            for bundle, buffers in members.items()
        }

    def gathered(self) -> Iterable[tuple[str, Gather, int]]:
        """Tensors that update programs need of all microbatches, how, and the program that makes each."""
        wanted = {name for program in self.programs.update for name in program.inputs}
        for name in sorted(wanted):
            if self._maker_repeats(name):
                yield name, self.programs.gathered.get(name, Gather.FIRST), self.maker[name]

    def buffer(self, value: Value, device: int) -> Value | None:
        """The value that names the buffer of another value on a device; None for a variable's buffer."""
        while (maker := self.maker.get(value.tensor)) is not None and self.wires[maker].device == device:
            owner = self.wires[maker].cost.owner[value.tensor]
            if owner is None:
                return None
            is_gathered = value.whole and self.wires[maker].per_microbatch
            if owner == value.tensor or is_gathered or owner in self.carried:
                return self.bundle.get(value, value)
            value = self._value(owner, self.all[maker]) if self.maker.get(owner) != maker else Value(owner, value.whole)
        return value

    def _maker_repeats(self, tensor: str) -> bool:
        return tensor in self.maker and self.wires[self.maker[tensor]].per_microbatch

    def _value(self, tensor: str, reader: StageProgram) -> Value:
        """The value that a program reads as `tensor`."""
        if not _is_repeated(reader):
            return Value(tensor, True)
        return Value(tensor, tensor in self.maker and not self._maker_repeats(tensor))

    def _find_targets(self) -> dict[Value, set[int]]:
        """Devices on which each value is read."""
        targets: dict[Value, set[int]] = {}
        for program, wires in zip(self.all, self.wires, strict=True):
            for name in program.inputs:
                targets.setdefault(self._value(name, program), set()).add(wires.device)
                if name in self.carried:
                    targets.setdefault(Value(self.carried[name], False), set()).add(wires.device)
        return targets

    def _find_bundles(self) -> dict[Value, Value]:
        """Bundles: values of one program with the same readers, all on its device, share an entry, as they are many."""
        readers: dict[str, list[int]] = {}
        for index, program in enumerate(self.all):
            for name in program.inputs:
                readers.setdefault(name, []).append(index)
        owned = [wires.cost.owner for wires in self.wires]
        lent = {owner for owners in owned for name, owner in owners.items() if owner != name}
        single = {*lent, *self.carried.values(), *self.programs.gathered, *self.costs.costed.graph.outputs}
        first: dict[tuple[int, ...], Value] = {}
        bundles: dict[Value, Value] = {}
        for name, maker in self.maker.items():
            using = readers.get(name, [])
            at_home = all(self.wires[index].device == self.wires[maker].device for index in using)
            if at_home and name not in single and owned[maker][name] == name:
                value = Value(name, not self.wires[maker].per_microbatch)
                bundles[value] = first.setdefault((maker, *using), value)
        return bundles

    def _wire(self, index: int) -> None:
        program, wires = self.all[index], self.wires[index]
        reads: dict[Value, None] = {}
        for name in program.inputs:
            value = self._value(name, program)
            maker = self.maker.get(name)
            if maker is not None and self.wires[maker].device != wires.device:
                wires.arrives.append(value)
            buffer = self.buffer(value, wires.device)
            if buffer is not None:
                reads[buffer] = None
            if name in self.carried:
                wires.before.append(Value(self.carried[name], False))
        wires.reads = list(reads)
        for name in program.outputs:
            value = Value(name, not wires.per_microbatch)
            others = tuple(sorted(self.targets.get(value, set()) - {wires.device}))
            if others:
                wires.sends.append((value, others, self.buffer(value, wires.device)))
                for target in others:
                    source = self._relay.get((name, target), wires.device)
                    self.handed.setdefault((value, source), []).append(target)
            if self.programs.gathered.get(name) is Gather.SUM and wires.per_microbatch:
                wires.sums[Value(name, True)] = self.size_bytes(value, wires.device)
                if value not in self.targets:
                    continue
            if self.buffer(value, wires.device) == self.bundle.get(value, value):
                bundle = self.bundle.get(value, value)
                wires.makes[bundle] = wires.makes.get(bundle, 0) + self.size_bytes(value, wires.device)


def _is_repeated(program: StageProgram) -> bool:
    return program.kind in KIND_OF_CALLS


def arguments(wiring: Dataflow) -> Sequence[tuple[Value, int]]:
    """Arguments of the step that programs read, with the devices they are read on."""
    return [
        (value, device)
        for value, devices in wiring.targets.items()
        if value.tensor not in wiring.maker
        for device in sorted(devices)
    ]
