"""What a report says of a plan for a cost graph: loads in the file's unit in place of a simulated step."""

from __future__ import annotations

from partitioner.ir.devices import short_name
from partitioner.ir.plan import CostGraphInfo, PlanDocument
from partitioner.ir.units import format_bytes, format_percent, format_seconds, plural
from partitioner.report.verdict import short_names


def opening_line(plan: PlanDocument, info: CostGraphInfo) -> str:
    """What was asked: `600 nodes, 540 values, devices GPU:0, GPU:1 and CPU:0`."""
    return (
        f"cost graph, {plural(plan.model.num_ops, 'node')}, {plural(info.num_values, 'value')}, "
        f"devices {short_names([device.name for device in plan.devices])}"
    )


def verdict_line(plan: PlanDocument, info: CostGraphInfo) -> str:
    """What came out: how many devices, whether in contiguous pieces, and the largest load."""
    pieces = "contiguous pieces" if info.contiguous else "free pieces"
    load = f"largest load {format_load(plan, plan.solver.objective)}"
    return f"{pieces} on {short_names(plan.used_devices)}: {load}"


def load_rows(plan: PlanDocument, info: CostGraphInfo) -> list[tuple[str, ...]]:
    """Device, nodes, compute, transfer, load, share of the largest, memory."""
    memory = {device.name: device.memory_bytes for device in plan.devices}
    rows = []
    for stage in plan.stages:
        load = info.load[stage.device]
        limit = memory[stage.device]
        held = format_bytes(stage.peak_bytes) + (f" of {format_bytes(limit)}" if limit else "")
        rows.append(
            (
                short_name(stage.device),
                f"{stage.num_ops:,}",
                format_load(plan, info.compute[stage.device]),
                format_load(plan, info.transfer[stage.device]),
                format_load(plan, load),
                format_percent(load / plan.solver.objective if plan.solver.objective else 1.0),
                held,
            )
        )
    return rows


def solver_lines(plan: PlanDocument) -> list[str]:
    """Status, bound and gap, and the single devices beside the plan."""
    solver = plan.solver
    lines = [
        f"{solver.status} in {format_seconds(solver.seconds)}, seed {solver.seed}, found by {solver.method}",
        f"lower bound {format_load(plan, solver.lower_bound)}: no allowed placement has a smaller largest load; "
        f"gap {format_percent(solver.gap)}",
    ]
    for baseline in plan.baselines:
        fits = "" if baseline.fits else ", which is not allowed"
        lines.append(f"{baseline.name}: {format_seconds(baseline.step_seconds)}{fits}")
    return lines


def format_load(plan: PlanDocument, load: float) -> str:
    """`17.7147 ms`: six digits, in the file's unit."""
    return f"{load:.6g} {plan.solver.unit}"
