"""Facts of a plan in words, by name: what was asked for and chosen, what it assumes, what its verification found."""

from __future__ import annotations

from partitioner.ir.devices import short_ranges
from partitioner.ir.plan import DeviceInfo, LinkInfo, PlanDocument, SolverInfo, Verification
from partitioner.ir.units import format_bandwidth, format_bytes, format_percent, format_seconds


def settings_in_words(plan: PlanDocument) -> dict[str, str]:
    """The model, what was asked for, and what was chosen; empty where a plan does not say."""
    model = plan.model
    recomputed = [f"{stage.index}{' (selective)' * stage.selective}" for stage in plan.stages_of(0) if stage.recompute]
    return {
        "step": "training" if model.training else "inference",
        "batch size": f"{model.batch_size:,}",
        "parameters": f"{model.num_parameters:,}",
        "ops": f"{model.num_ops:,}",
        "loss": model.loss,
        "optimizer": model.optimizer,
        "objective": str(plan.objective),
        "asked for": str(plan.requested_strategy),
        "strategy": str(plan.strategy),
        "devices used": ", ".join(short_ranges(plan.used_devices)),
        "replicas": f"{plan.num_replicas:,}",
        "stages": f"{plan.num_stages:,}",
        "microbatches": f"{plan.num_microbatches:,}",
        "schedule": plan.schedule,
        "recomputed stages": ", ".join(recomputed),
        "updates": f"{plan.updates}, staleness at most {plan.max_staleness}" if plan.max_staleness else plan.updates,
        "constraints": "; ".join(requirement.text for requirement in plan.requirements),
        "time limit": format_seconds(plan.request["time_limit"]) if "time_limit" in plan.request else "",
        "seed": str(plan.solver.seed),
    }


def solver_in_words(solver: SolverInfo) -> str:
    """How the search ended, and what the solver of placements took where it was needed."""
    is_late = solver.status == "time-limit"
    status = "the search ended by its time" if is_late else solver.status
    if not solver.seconds:
        return f"{status}, no solver was needed"
    took = f"{format_seconds(solver.seconds)}, seed {solver.seed}"
    return f"{status}; solver {took}" if is_late else f"{status} in {took}"


def gaps_in_words(solver: SolverInfo) -> str:
    """How far the plan is from its bounds."""
    of_family = "" if solver.family_gap is None else f", of its family {format_percent(solver.family_gap)}"
    return f"gap {format_percent(solver.gap)}{of_family}"


def assumptions_in_words(plan: PlanDocument) -> dict[str, str]:
    """Devices, links, where costs come from, and versions of libraries."""
    devices = {short_ranges([info.name])[0]: _hardware(info) for info in plan.devices}
    links = {f"link {link.name}": _link(link) for link in plan.links}
    costs = {"costs of ops": plan.costs.source}
    if plan.costs.measured_share:
        costs["measured share"] = format_percent(plan.costs.measured_share)
    if plan.uncosted_ops:
        costs["ops without a cost formula"] = ", ".join(plan.uncosted_ops)
    return {**devices, **links, **costs, **plan.versions}


def verification_in_words(verification: Verification) -> dict[str, str]:
    """The result, and the largest relative differences."""
    return {
        "result": "passed" if verification.passed else "FAILED",
        "misplaced ops": f"{len(verification.misplaced_ops):,}",
        "outputs": f"{verification.outputs_max_rel_diff:.1e}",
        "gradients": f"{verification.gradients_max_rel_diff:.1e}",
        "weights": f"{verification.weights_max_rel_diff:.1e}",
        "steps": str(verification.num_steps),
        "ran on": ", ".join(short_ranges(dict.fromkeys(verification.ran_on.values()))),
    }


def _hardware(info: DeviceInfo) -> str:
    return f"{info.hardware} ({info.origin}), {format_bytes(info.memory_bytes)}"


def _link(link: LinkInfo) -> str:
    bandwidth, latency = format_bandwidth(link.bandwidth_bytes_per_second), format_seconds(link.latency_seconds)
    return f"{bandwidth}, {latency} ({link.origin})"
