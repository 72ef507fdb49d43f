"""The stages of a plan whose step runs as stage programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from partitioner.ir.costed import CostedGraph
from partitioner.ir.op_graph import OpGraph, Phase, VariableKind
from partitioner.ir.plan import Stage
from partitioner.ir.stage_programs import StagePrograms
from partitioner.planner.document.ops import stages_of_ops
from partitioner.planner.layouts.result import SearchResult


def variable_users(graph: OpGraph) -> dict[str, str]:
    """The first op that uses each variable: they share a device."""
    return {variable: op.name for op in reversed(graph.ops) for variable in op.variables}


def staged_stages(costed: CostedGraph, result: SearchResult) -> list[Stage]:
    """One plan stage per stage program, with the seconds and bytes sent of its forwards and backwards in a whole step.

    A parameter belongs to the first stage on its device that reads it, an op to the first stage whose programs have
    it, and ops that run once or update to the stage on their device that has their layer, else to the first one there.
    """
    programs, staged = result.programs, result.staged
    assert programs is not None and staged is not None
    graph = costed.graph
    homes = _stage_of_parameters(costed, result, programs)
    sent = _sent_bytes(result, programs)
    names = [placed.name for placed in costed.topology.devices]
    num_ops = Counter(stages_of_ops(graph, result, programs.stages, names).values())
    stages = []
    for index, device in enumerate(programs.stages):
        forward = programs.forward[index]
        layers = (graph.op[name].layer for name in forward.ops if graph.op[name].phase is Phase.FORWARD)
        stages.append(
            Stage(
                index=index,
                replica=0,
                device=device,
                layers=tuple(dict.fromkeys(layer for layer in layers if layer)),
                num_ops=num_ops[index],
                parameter_bytes=sum(graph.variable[name].size_bytes for name, stage in homes.items() if stage == index),
                peak_bytes=staged.peak[device].total_bytes,
                compute_seconds=staged.stage_seconds[index],
                send_bytes=sent[index],
                recompute=index in programs.recomputed,
                selective=index in programs.rerun,
            )
        )
    return stages


def _stage_of_parameters(costed: CostedGraph, result: SearchResult, programs: StagePrograms) -> Mapping[str, int]:
    """For each parameter, the first stage on its device whose forward depends on it, else the first stage there."""
    graph = costed.graph
    names = [placed.name for placed in costed.topology.devices]
    users = variable_users(graph)
    made = {name: program for program in programs.once for name in program.outputs}
    readers: dict[str, int] = {}
    for program in programs.forward:
        reached = set(program.ops)
        stack = [name for name in program.inputs if name in made]
        while stack:
            op = graph.op[graph.tensor[stack.pop()].producer]
            if op.name not in reached:
                reached.add(op.name)
                stack += op.inputs
        for name in reached:
            for variable in graph.op[name].variables:
                if programs.stages[program.stage] == names[result.placement[users[variable]]]:
                    readers.setdefault(variable, program.stage)
    homes = {}
    for variable in graph.variables:
        if variable.kind is VariableKind.PARAMETER and variable.name in users:
            device = names[result.placement[users[variable.name]]]
            there = [stage for stage, name in enumerate(programs.stages) if name == device]
            homes[variable.name] = readers.get(variable.name, there[0] if there else 0)
    return homes


def _sent_bytes(result: SearchResult, programs: StagePrograms) -> list[int]:
    """Bytes that each stage sends in a step; `once` and update programs count for the first stage of their device."""
    assert result.staged is not None
    stage_of = {name: program.stage for program in programs.repeated for name in program.outputs}
    sent = [0] * len(programs.stages)
    for send in result.staged.sends:
        first = programs.stages.index(send.source) if send.source in programs.stages else 0
        sent[stage_of.get(send.tensor, first)] += send.size_bytes
    return sent
