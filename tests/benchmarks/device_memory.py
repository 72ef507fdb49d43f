"""What each device held while a placed model's training step ran: buffers from the profiler, laid to devices.

A buffer belongs to the device whose op or stage function made it. Logical CPU devices share the buffers that real ones
would copy: a value that another device reads counts on each as long as it still has to read it, and the parts of the
batch on the devices that read them. Variables count where they are.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from cost_models.memory import allocated_bytes
from partitioner.ir.stage_programs import ProgramKind, StageProgram, StagePrograms
from partitioner.ir.step import CapturedStep, StepKind
from partitioner.stages.programs import stage_programs
from tests.benchmarks.allocations import Allocation, Call, Profile

_LETTERS = {ProgramKind.ONCE: "I", ProgramKind.FORWARD: "F", ProgramKind.BACKWARD: "B", ProgramKind.UPDATE: "U"}
_FOREVER = 2**63


def measured_peak_bytes(placed: Any, profile: Profile, kind: StepKind = StepKind.TRAIN) -> dict[str, int]:
    """By device, its variables and its buffers at the worst moment of a profiled step.

    The step runs in microbatches or in one piece.
    """
    specs = next(specs for one, specs in placed.program.signatures() if one is kind)
    step = placed.program.step(kind, specs)
    execution = placed.program.execution(step)
    variables: Counter[str] = Counter()
    for variable in placed.program.captured_variables():
        variables[variable.device] += allocated_bytes(variable.dtype.size * variable.shape.num_elements(), "CPU")
    if not execution.is_staged:
        peaks = _peaks_in_one_piece(step, execution.placement, profile)
        return {name: variables[name] + peak for name, peak in peaks.items()}
    programs = stage_programs(step, execution, results=step.results)
    graph = placed.program.function(kind, specs).graph
    holding = _Holding(programs, step, {op.name: op.device for op in graph.get_operations()}, profile)
    return {name: variables[name] + holding.peak_bytes(name) for name in placed.program.devices.values()}


def _peaks_in_one_piece(step: CapturedStep, placement: Mapping[str, str], profile: Profile) -> dict[str, int]:
    """What another device reads it holds from when the tensor was there until its last op that reads it has ended."""
    tensor, ended = step.graph.tensor, profile.ended
    first, last = min(ended.values()), max(ended.values()) + 1
    # Who called the step holds its arguments until it ends.
    batch = [
        Allocation(op=op, run=-1, start=first, end=last, size_bytes=allocated_bytes(tensor[name].size_bytes, "CPU"))
        for name, op in ((name, tensor[name].producer) for name in step.inputs)
    ]
    allocations = [*batch, *profile.allocations]
    made = {(one.op, one.size_bytes): one for one in allocations}
    behind: dict[str, Allocation] = {}
    spans = {
        id(one): {placement[op]: (one.start, one.start)}
        for one in allocations
        if (op := _op_of(one.op, placement)) is not None
    }
    for one in batch:
        spans[id(one)] = {placement[one.op]: (one.start, one.end)}
    for op in step.graph.ops:
        device, end = placement[op.name], ended.get(op.name, 0)
        for name in op.inputs:
            if name in behind:
                of_buffer = spans[id(behind[name])]
                sent = ended.get(tensor[name].producer, behind[name].start)
                start, known = of_buffer.get(device, (sent, sent))
                of_buffer[device] = start, max(known, end)
        for name in op.outputs:
            size = allocated_bytes(tensor[name].size_bytes, "CPU")
            passed_on = (behind[read] for read in op.inputs if read in behind and behind[read].size_bytes == size)
            buffer = made.get((op.name, size)) or next(passed_on, None)
            if buffer is not None:
                behind[name] = buffer
    changes = {device: Counter[int]() for device in placement.values()}
    for one in allocations:
        of_buffer = spans.get(id(one), {})
        for device, (start, end) in of_buffer.items():
            _hold(changes[device], start, end if len(of_buffer) > 1 else one.end, one.size_bytes)
    for gone in profile.released:
        op = _op_of(gone.op, placement)
        if op is not None:
            _hold(changes[placement[op]], gone.end, _FOREVER, -gone.size_bytes)
    return {device: _most(found) for device, found in changes.items()}


def _op_of(name: str, placement: Mapping[str, str]) -> str | None:
    """The op of the step that one in a function is part of: of a loop, whose name comes before theirs."""
    while name and name not in placement:
        name = name.rpartition("/")[0]
    return name or None


def _hold(changes: Counter[int], start: int, end: int, size_bytes: int) -> None:
    changes[start] += size_bytes
    changes[end] -= size_bytes


def _most(changes: Counter[int]) -> int:
    return max(accumulate(changes[moment] for moment in sorted(changes)), default=0)


class _Holding:
    """Bytes that devices take and let go, by moment; the whole batch belongs to none, and is under the empty name."""

    def __init__(
        self, programs: StagePrograms, step: CapturedStep, device_of_op: Mapping[str, str], profile: Profile
    ) -> None:
        self._step, self._device_of_op = step, device_of_op
        self._programs = {f"{program.stage}{_LETTERS[program.kind]}": program for program in programs.programs}
        self._calls: dict[str, dict[int, Call]] = {}
        for call in profile.calls:
            label, part = _label_and_part(call.name)
            self._calls.setdefault(label, {})[part] = call
        self._call_of = profile.called_by
        self._readers: dict[str, list[str]] = {}
        for label, program in self._programs.items():
            for name in program.inputs if program.kind is not ProgramKind.UPDATE else ():
                self._readers.setdefault(name, []).append(label)
        self._changes: dict[str, Counter[int]] = {}
        shared = self._shared(profile.allocations)
        for made in profile.allocations:
            for device, (start, end) in shared.get(id(made), {self._device(made): (made.start, made.end)}).items():
                self._hold(device, start, end, made.size_bytes)
        for gone in profile.released:
            # It was a variable's, which is counted for good.
            if gone.run in self._call_of:
                self._hold(self._device(gone), gone.end, _FOREVER, -gone.size_bytes)
        self._hold_batch(min(call.start for call in profile.calls))

    def peak_bytes(self, device: str) -> int:
        """The most that buffers took on a device."""
        return _most(self._changes.get(device, Counter()))

    def _hold(self, device: str, start: int, end: int, size_bytes: int) -> None:
        _hold(self._changes.setdefault(device, Counter()), start, end, size_bytes)

    def _device(self, made: Allocation) -> str:
        if made.run in self._call_of:
            return self._programs[_label_and_part(self._call_of[made.run])[0]].device
        return self._device_of_op.get(f"staged_step/{made.op.rpartition('staged_step/')[2]}", "")

    def _last_reads(self, name: str, part: int | None) -> dict[str, int]:
        """When the last call of each device ends that reads a microbatch's value (of the whole step where None)."""
        found: dict[str, int] = {}
        for label in self._readers.get(name, ()):
            device = self._programs[label].device
            calls = self._calls[label]
            using = calls.values() if part is None or part not in calls else [calls[part]]
            found[device] = max([found.get(device, 0), *(call.end for call in using)])
        return found

    def _hold_batch(self, start: int) -> None:
        made = {name for program in self._programs.values() for name in program.outputs}
        parts = sorted({part for calls in self._calls.values() for part in calls})
        for name in self._readers.keys() - made:
            size = allocated_bytes(self._step.graph.tensor[name].size_bytes // len(parts), "CPU")
            for part in parts:
                for device, end in self._last_reads(name, part).items():
                    self._hold(device, start, end, size)

    def _shared(self, allocations: Iterable[Allocation]) -> dict[int, dict[str, tuple[int, int]]]:
        """For each buffer (by id) that another device reads too, from and until when each device holds it.

        It comes to the others when the call that made it has ended.
        """
        made_in: dict[str, list[Allocation]] = {}
        for made in allocations:
            made_in.setdefault(self._call_of.get(made.run, ""), []).append(made)
        found: dict[int, dict[str, tuple[int, int]]] = {}
        for label, program in self._programs.items():
            is_whole = program.kind in (ProgramKind.ONCE, ProgramKind.UPDATE)
            for name in program.outputs:
                if all(self._programs[reader].device == program.device for reader in self._readers.get(name, ())):
                    continue
                for part, call in self._calls.get(label, {}).items():
                    made = self._buffer(name, program, call, made_in.get(call.name, ()))
                    if made is not None:
                        spans = found.setdefault(id(made), {program.device: (made.start, call.end)})
                        for device, end in self._last_reads(name, None if is_whole else part).items():
                            start, known = spans.get(device, (call.end, 0))
                            spans[device] = start, max(known, min(end, made.end))
                        # Whoever reads it last has it until it is let go.
                        last = max(spans, key=lambda device: spans[device][1])
                        spans[last] = spans[last][0], made.end
        return found

    def _buffer(
        self, name: str, program: StageProgram, call: Call, allocations: Sequence[Allocation]
    ) -> Allocation | None:
        """The buffer that an output of a call lies in: of the nearest op behind it whose buffer outlives the call."""
        left = {made.op: made for made in allocations if made.end >= call.end}
        graph, inside = self._step.graph, set(program.ops)
        queue = deque([graph.tensor[name].producer])
        seen = set(queue)
        while queue:
            op = queue.popleft()
            if op in left:
                return left[op]
            sources = dict.fromkeys(graph.tensor[read].producer for read in graph.op[op].inputs)
            queue += [source for source in sources if source in inside - seen]
            seen |= sources.keys()
        return None


def _label_and_part(name: str) -> tuple[str, int]:
    """`0F` and 3 of `0F3`; what runs once a step is part 0."""
    found = re.fullmatch(r"(\d+[IFBU])(\d*)", name)
    assert found is not None, name
    return found[1], int(found[2] or 0)
