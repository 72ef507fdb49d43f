"""A captured step: the op graph with TensorFlow's own graph, carried unopened from capture to emission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from partitioner.ir.op_graph import OpGraph


class StepKind(StrEnum):
    """The results of one call: outputs; outputs and loss; or a whole training step."""

    PREDICT = "predict"
    EVALUATE = "evaluate"
    TRAIN = "train"


RESULTS: Mapping[StepKind, tuple[str, ...]] = {
    StepKind.PREDICT: ("y_pred",),
    StepKind.EVALUATE: ("loss", "y_pred", "logs"),
    StepKind.TRAIN: ("loss", "y_pred", "logs"),
}
"""The outputs that a step of each kind may have to return: `logs` alone where the model defines the step itself."""


class LossReduction(StrEnum):
    """How the loss of a batch follows from the losses of its parts: as mean weighted by rows, as sum, or neither."""

    MEAN = "mean"
    SUM = "sum"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """One traced step. TensorFlow's objects are opaque here: only capture, emit and verify look inside.

    Attributes:
        kind: The kind of results.
        graph: Its op graph, with every shape at the requested batch size.
        graph_def: A GraphDef with the same ops, pruned to what runs, the batch size left open.
        specs: Structures of TensorSpec for (x, y, sample_weight); None where there is none.
        inputs: Names of the tensors that stand for the flattened arguments.
        captures: Tensors from outside the graph, by the name of the op that stands for each.
        variables: The variables among the captures: Keras' variable where it exists, else TensorFlow's.
        variable_names: Names of the variables in the op graph.
        outputs: `{"y_pred", "loss", "gradients", "logs"}` as far as computed, with tensor names in place of tensors.
            A gradient is None (unconnected), a name, or (values, indices, dense shape) names for a sparse
            gradient.
        results: The outputs that its caller gets: those of `RESULTS`, but `y_pred` only where a metric reads it.
        side_effects: Names of the ops to run besides those the outputs need.
        trainable: The variables the gradients belong to, in order.
        optimizers: Keras' optimizers that update in it.
        seed: Name of the scalar tensor the backward pass starts with: one, the gradient of the (scaled) loss by
            itself. Empty where nothing is differentiated.
        loss_reduction: Whether the loss averages over the rows of a batch; MEAN where there is no loss.
        loss_reduction_note: For OTHER, a sentence that says why.
        lacks_summaries: Whether it was traced without `tf.summary`'s ops, for want of a writer.
        fixed_batch: Why the batch cannot be cut into microbatches; empty if it can.
    """

    kind: StepKind
    graph: OpGraph
    graph_def: Any
    specs: tuple[Any, Any, Any]
    inputs: tuple[str, ...]
    captures: dict[str, Any]
    variables: dict[str, Any]
    variable_names: dict[str, str]
    outputs: dict[str, Any]
    results: tuple[str, ...]
    side_effects: tuple[str, ...]
    trainable: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()
    seed: str = ""
    loss_reduction: LossReduction = LossReduction.MEAN
    loss_reduction_note: str = ""
    lacks_summaries: bool = False
    fixed_batch: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the model defines the step itself."""
        return "logs" in self.outputs

    @property
    def uncuttable(self) -> str:
        """Why the step cannot run in microbatches with the same results; empty if it can."""
        if self.fixed_batch or self.loss_reduction is not LossReduction.OTHER:
            return self.fixed_batch
        return self.loss_reduction_note
