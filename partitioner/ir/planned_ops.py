"""The op graph of a planned step, kept in plan.json so that a loaded plan can draw it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_OPS = 100_000
"""Graphs with more ops are not kept: they would make a plan.json of tens of MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOp:
    """An op whose outputs another stage reads, on another device.

    Attributes:
        op: The op's row.
        stage: Index of the stage that reads.
        size_bytes: Bytes of the outputs that it reads, of a whole step.
    """

    op: int
    stage: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOps:
    """The ops of the first replica's step, in columns: row i is the i-th op of the placement, sorted by name.

    Columns take about as many bytes of plan.json as the placement itself; an object for each op would take thrice that.

    Attributes:
        types: TensorFlow op type of each op.
        layers: Index of the op's box in the plan's `layers`; -1 for ops outside of all of them.
        phases: A letter for each op: `f` forward, `b` backward, `u` update.
        stages: Index of each op's stage.
        inputs: Rows of the ops whose outputs the op reads, each once. Control edges are left out.
        cuts: What one stage reads of another one on another device.
    """

    types: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    phases: str = ""
    stages: tuple[int, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[CutOp, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.types, self.layers, self.phases, self.stages, self.inputs)}
        if len(lengths) != 1:
            raise ValueError(f"the columns of `ops` have different lengths: {sorted(lengths)}")

    def check(self, *, num_layers: int, num_stages: int) -> None:
        """Check that rows name rows, layers and stages that there are.

        Raises:
            ValueError: One does not.
        """
        rows, stages = range(len(self)), range(num_stages)
        for what, known, named in (
            ("layer", range(-1, num_layers), set(self.layers)),
            ("stage", stages, {*self.stages, *(cut.stage for cut in self.cuts)}),
            ("row", rows, {*(row for inputs in self.inputs for row in inputs), *(cut.op for cut in self.cuts)}),
        ):
            if strangers := [index for index in named if index not in known]:
                raise ValueError(f"`ops` names {what} {min(strangers)}, which is none of the plan's")
        if strange := set(self.phases) - set("fbu"):
            raise ValueError(f"`ops` has the phase {min(strange)!r}; expected f, b or u")

    def __len__(self) -> int:
        """Number of ops."""
        return len(self.types)
