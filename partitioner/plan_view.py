"""The plan that the API returns, with its views: text, page, timeline, pictures. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cost_models.measured import MeasuredCosts
from partitioner.errors import UsageError
from partitioner.hardware.retarget import retargeted, within
from partitioner.ir.json import to_json
from partitioner.ir.plan import PlanDocument
from partitioner.report.explanation import Explanation, explain_plan
from partitioner.report.html.page import to_html
from partitioner.report.images import write_image
from partitioner.report.notebook import as_html
from partitioner.report.placement import to_dot
from partitioner.report.text import render
from partitioner.report.trace_events import to_trace_events
from partitioner.spelling import argument, as_python


@dataclass(frozen=True, kw_only=True)
class Plan(PlanDocument):
    """A placement of every op of a model, with predicted costs and a proved bound.

    Attributes:
        traced: The step it was made from, for placing the model without tracing it again; None if it was loaded.
        measured_costs: The measured costs it was made with, if any.
        planning_seconds: What each part of planning took, by its name; empty if the plan was not made just now.

    Example:
        >>> import keras, partitioner, tempfile
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
        >>> plan = partitioner.plan(model, "GPU:0-1", hardware="t4", strategy="layer-split")
        >>> path = tempfile.mkdtemp() + "/plan.json"
        >>> plan.save(path)
        >>> partitioner.Plan.load(path).to_text() == plan.to_text()
        True
        >>> plan.to_dot().split()[0], plan.to_html()[:15], plan.to_timeline()[:1]
        ('digraph', '<!DOCTYPE html>', '{')
    """

    traced: Any = field(default=None, repr=False, compare=False)
    measured_costs: MeasuredCosts | None = field(default=None, repr=False, compare=False)
    planning_seconds: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, document: PlanDocument, **more: Any) -> Plan:
        """The document with its views, and with further or replaced fields."""
        return cls(**{field.name: getattr(document, field.name) for field in fields(PlanDocument)} | more)

    @property
    def document(self) -> PlanDocument:
        """The document of plan.json."""
        return PlanDocument(**{field.name: getattr(self, field.name) for field in fields(PlanDocument)})

    def to_json(self) -> str:
        """The text of plan.json: sorted keys, two spaces per level."""
        return self.document.to_json()

    def retargeted(
        self,
        devices: Mapping[str, str],
        *,
        memory_limit: str | float | Mapping[str, str | float] | None = None,
    ) -> Plan:
        """The plan on other devices; what `devices` does not name stays where it is.

        Times, memory and bounds stay those predicted for the devices that were planned for, and a note says it.
        Verification and measured steps are left out, and so are devices that the plan does not use.

        Args:
            devices: The new device by the plan's: `{"GPU:0": "CPU:0"}`, or ranges, `{"GPU:0-3": "GPU:4-7"}`.
            memory_limit: Usable memory of each of the new devices, or a size by device, in place of the plan's limits.

        Raises:
            UsageError: A name is wrong or not in the plan, or two of its devices would become one.
            InfeasibleError: The predicted peak of a device exceeds its limit.

        Example:
            >>> import keras, partitioner
            >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
            >>> plan = partitioner.plan(model, "GPU:0-1", hardware="t4", strategy="layer-split")
            >>> here = plan.retargeted({"GPU:0": "CPU:0", "GPU:1": "CPU:1"})
            >>> [name[-5:] for name in here.used_devices]
            ['CPU:0', 'CPU:1']
        """
        document = retargeted(self.document, devices)
        return self._of(document if memory_limit is None else within(document, memory_limit))

    def within(self, memory_limit: str | float | Mapping[str, str | float]) -> Plan:
        """The plan with other limits of memory: of each device, or a size by device.

        Raises:
            UsageError: A size cannot be read, or a name is not among the plan's devices.
            InfeasibleError: The predicted peak of a device exceeds its limit.
        """
        return self._of(within(self.document, memory_limit))

    def _of(self, document: PlanDocument) -> Plan:
        return Plan.of(document, traced=self.traced, measured_costs=self.measured_costs)

    def save_costs(self, path: str | Path) -> None:
        """Write the measured costs, for `plan(..., costs=path)` here or elsewhere.

        Raises:
            UsageError: The plan was made without measuring, or was loaded.
        """
        if self.measured_costs is None:
            raise UsageError("the plan has no measured costs", help=f"plan with {argument('costs', 'measured')}")
        Path(path).write_text(to_json(self.measured_costs, indent=2) + "\n", encoding="utf-8")

    def to_text(
        self,
        files: Sequence[str | Path] = (),
        *,
        verbose: bool = False,
        spell: Callable[[str], str] = as_python,
    ) -> str:
        """The report that the command line prints.

        Args:
            files: Paths to list at its end.
            verbose: Everything, in place of a single screen of at most 60 lines.
            spell: How arguments are named: `as_python` or `as_flags` of `partitioner.spelling`.
        """
        return render(self, files, verbose=verbose, spell=spell)

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as a page that needs no network and no other file; written to `path` if given."""
        return _written(to_html(self), path)

    def to_timeline(self, path: str | Path | None = None) -> str:
        """The step as trace events, for ui.perfetto.dev and chrome://tracing; written to `path` if given.

        What was measured (`measured`) stands beside what was predicted.
        """
        return _written(to_trace_events(self), path)

    def explain(self) -> Explanation:
        """What limits the step, in words and figures; `partitioner.explain(model, plan)` adds what would help."""
        return explain_plan(self, not_planned="not asked for")

    def _repr_html_(self) -> str:
        return as_html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": as_html(self)}

    def to_dot(self, path: str | Path | None = None, **options: Any) -> str:
        """The placement as a DOT picture: a frame per device, cut tensors thick; written to `path` if given.

        Options are those of `partitioner.report.placement.to_dot`: `level` (`stage`, `layer` or `op`), `stage`,
        `detail`, and `rankdir` and `show_shapes` as in `keras.utils.plot_model`.
        """
        return _written(to_dot(self, **options), path)

    def to_svg(self, path: str | Path, **options: Any) -> None:
        """The same picture as SVG.

        Raises:
            UsageError: Neither pygraphviz nor the `dot` program is installed.
        """
        write_image(to_dot(self, **options), path, "svg")

    def to_png(self, path: str | Path, **options: Any) -> None:
        """The same picture as PNG.

        Raises:
            UsageError: Neither pygraphviz nor the `dot` program is installed.
        """
        write_image(to_dot(self, **options), path, "png")


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
