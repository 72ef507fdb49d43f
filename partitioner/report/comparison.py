"""Two plans compared, as a value: what was chosen, what is predicted, and what the predictions rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from partitioner.ir.plan import ModelInfo, PlanDocument, Stage
from partitioner.report.facts import assumptions_in_words, settings_in_words, verification_in_words

SCHEMA = "partition-diff/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact that differs, in words; empty for the plan that does not have it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A predicted figure of both plans, equal or not.

    Attributes:
        name: `step`, `latency of one input`, `bytes sent` ...
        unit: `s`, `bytes`, `rows/s`, or `share` for fractions of one.
        before: Of the first plan.
        after: Of the second plan.
        difference: `after - before`.
    """

    name: str
    unit: str
    before: float
    after: float
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Predicted peak of a device that a plan uses, and the bytes it may use; None where a plan does not list it."""

    device: str
    before_bytes: int | None
    after_bytes: int | None
    before_limit_bytes: int | None
    after_limit_bytes: int | None
    difference_bytes: int

    @property
    def after_share(self) -> float:
        """Share of its memory that the device holds at its peak by the second plan."""
        return (self.after_bytes or 0) / self.after_limit_bytes if self.after_limit_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """A stage of a replica that differs; None for the plan that does not have it."""

    index: int
    replica: int
    before: Stage | None
    after: Stage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLayer:
    """A layer on other devices; several are those of its replicas, none that the plan does not have it."""

    layer: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The second plan against the first.

    Attributes:
        before: The model of the first plan.
        after: The model of the second plan.
        is_same_model: Whether both have the same fingerprint: the ops of the model, by their kinds and shapes.
        is_same_plan: Whether nothing below differs, verification aside.
        settings: What was asked for and chosen, where it differs.
        figures: Predicted figures.
        memory: Peaks of the devices that either plan uses.
        stages: The stages that differ.
        layers: All layers in order: those of the second plan, then those of the first alone.
        moved_layers: The layers on other devices. In plans of the same model, layers are matched by their order, as
            Keras numbers unnamed layers anew; they have the names of the second plan.
        num_common_ops: Ops that both plans place, by name.
        num_moved_ops: Those of them on another device in the first replica.
        assumptions: Devices, links, costs and versions of libraries, where they differ.
        verification: What the verifications of both plans found, where it differs; empty unless both were verified.
    """

    before: ModelInfo
    after: ModelInfo
    is_same_model: bool
    is_same_plan: bool
    settings: tuple[Change, ...]
    figures: tuple[Figure, ...]
    memory: tuple[PeakMemory, ...]
    stages: tuple[StageChange, ...]
    layers: tuple[str, ...]
    moved_layers: tuple[MovedLayer, ...]
    num_common_ops: int
    num_moved_ops: int
    assumptions: tuple[Change, ...]
    verification: tuple[Change, ...]
    schema: str = SCHEMA


def compare_plans(before: PlanDocument, after: PlanDocument) -> Comparison:
    """The differences of two plans, of one model or of two."""
    is_same_model = before.model.fingerprint == after.model.fingerprint
    common_ops = before.placement.keys() & after.placement.keys()
    num_moved = sum(before.placement[op] != after.placement[op] for op in common_ops)
    settings = _changes(settings_in_words(before), settings_in_words(after))
    figures, memory = tuple(_figures(before, after)), tuple(_memory(before, after))
    layers = _layers(before, after, by_order=is_same_model)
    moved = tuple(
        MovedLayer(layer=layer, before=devices[0], after=devices[1])
        for layer, devices in layers.items()
        if devices[0] != devices[1]
    )
    stages = tuple(_stages(before, after))
    assumptions = _changes(assumptions_in_words(before), assumptions_in_words(after))
    differs = any(figure.difference for figure in figures) or any(peak.difference_bytes for peak in memory)
    differs = differs or not is_same_model or before.placement != after.placement
    return Comparison(
        before=before.model,
        after=after.model,
        is_same_model=is_same_model,
        is_same_plan=not (differs or settings or stages or moved or assumptions),
        settings=settings,
        figures=figures,
        memory=memory,
        stages=stages,
        layers=tuple(layers),
        moved_layers=moved,
        num_common_ops=len(common_ops),
        num_moved_ops=num_moved,
        assumptions=assumptions,
        verification=_verification(before, after),
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    return tuple(
        Change(name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in {**before, **after}
        if before.get(name, "") != after.get(name, "")
    )


def _verification(before: PlanDocument, after: PlanDocument) -> tuple[Change, ...]:
    if before.verification is None or after.verification is None:
        return ()
    return _changes(verification_in_words(before.verification), verification_in_words(after.verification))


def _figures(before: PlanDocument, after: PlanDocument) -> Iterator[Figure]:
    of_before, of_after = _figures_of(before), _figures_of(after)
    for (name, unit), value in of_before.items():
        if (other := of_after.get((name, unit))) is not None:
            yield Figure(name=name, unit=unit, before=value, after=other, difference=other - value)


def _figures_of(plan: PlanDocument) -> dict[tuple[str, str], float]:
    predicted = plan.predicted
    step = predicted.step_seconds
    return {
        ("step", "s"): step,
        ("rows per second", "rows/s"): plan.model.batch_size / step if step else 0.0,
        ("latency of one input", "s"): predicted.latency_seconds,
        ("devices idle", "share"): predicted.bubble_fraction,
        ("largest peak", "bytes"): max(predicted.peak_bytes.values(), default=0),
        ("bytes sent", "bytes"): sum(stage.send_bytes for stage in plan.stages),
        ("lower bound", plan.solver.unit): plan.solver.lower_bound,
        ("gap", "share"): plan.solver.gap,
    }


def _memory(before: PlanDocument, after: PlanDocument) -> Iterator[PeakMemory]:
    limits = [{device.name: device.memory_bytes for device in plan.devices} for plan in (before, after)]
    for device in {**limits[0], **limits[1]}:
        peaks = [
            plan.predicted.peak_bytes.get(device, 0) if device in limit else None
            for plan, limit in zip((before, after), limits, strict=True)
        ]
        if any(peaks):
            yield PeakMemory(
                device=device,
                before_bytes=peaks[0],
                after_bytes=peaks[1],
                before_limit_bytes=limits[0].get(device),
                after_limit_bytes=limits[1].get(device),
                difference_bytes=(peaks[1] or 0) - (peaks[0] or 0),
            )


def _stages(before: PlanDocument, after: PlanDocument) -> Iterator[StageChange]:
    of_before, of_after = ({(stage.replica, stage.index): stage for stage in plan.stages} for plan in (before, after))
    for replica, index in {**of_before, **of_after}:
        stages = of_before.get((replica, index)), of_after.get((replica, index))
        if stages[0] != stages[1]:
            yield StageChange(index=index, replica=replica, before=stages[0], after=stages[1])


def _layers(
    before: PlanDocument, after: PlanDocument, *, by_order: bool
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The devices of each layer by both plans; none by a plan that does not have it."""
    of_before, of_after = _devices_of_layers(before), _devices_of_layers(after)
    if by_order and len(of_before) == len(of_after):
        of_before = dict(zip(of_after, of_before.values(), strict=True))
    return {layer: (of_before.get(layer, ()), of_after.get(layer, ())) for layer in {**of_after, **of_before}}


def _devices_of_layers(plan: PlanDocument) -> dict[str, tuple[str, ...]]:
    """The devices of each layer in all replicas, first replica first."""
    firsts = plan.devices_of(0)
    peers: dict[str, dict[str, None]] = {device: {device: None} for device in firsts}
    for replica in range(1, plan.num_replicas):
        for first, device in zip(firsts, plan.devices_of(replica), strict=True):
            peers[first][device] = None
    return {layer.name: tuple(peers.get(layer.device, (layer.device,))) for layer in plan.layers}
