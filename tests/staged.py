"""Models of eight parts, `p0_...` to `p7_...`, that pins deal to devices, and how they train placed and unplaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import keras
import numpy as np
from keras import layers

import partitioner
from partitioner.emit.graph.function import emit_stepwise
from partitioner.ir.devices import short_name
from partitioner.ir.execution import Execution
from partitioner.ir.plan import PlanDocument
from partitioner.ir.step import CapturedStep, StepKind
from partitioner.verification.audit import executed_ops, hard_placement
from tests import models
from tests.asking import asked
from tests.twins import losses, relative

ROWS = 16
STEPS = 10
PARTS = 8


def mlp() -> keras.Model:
    x = inputs = keras.Input((models.WIDTH,))
    for part in range(PARTS - 1):
        x = layers.Dense(16, activation="gelu", name=f"p{part}_dense")(x)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="p7_scores")(x)))


def cnn() -> keras.Model:
    """Smooth activations: the slope of a ReLU jumps where rounding decides, by 5e-7 of all weights in one step."""
    x = inputs = keras.Input((models.SIDE, models.SIDE, 2))
    for part in range(3):
        x = layers.Conv2D(4, 3, padding="same", activation="gelu", name=f"p{part}_convolution")(x)
    x = layers.MaxPooling2D(name="p3_pooling")(x)
    x = layers.DepthwiseConv2D(3, padding="same", name="p4_depthwise")(x)
    x = layers.Conv2D(8, 3, activation="gelu", name="p5_convolution")(x)
    x = layers.Dense(16, activation="gelu", name="p6_dense")(layers.Flatten(name="p6_flatten")(x))
    return models.compiled(
        keras.Model(inputs, layers.Dense(models.CLASSES, name="p7_scores")(x)), keras.optimizers.SGD(0.05, momentum=0.9)
    )


def resnet() -> keras.Model:
    """Skip connections over one part, and one over four."""
    inputs = keras.Input((models.SIDE, models.SIDE, 2))
    x = first = layers.Conv2D(4, 3, padding="same", name="p0_stem")(inputs)
    for part in range(1, PARTS - 1):
        y = layers.Conv2D(4, 3, padding="same", name=f"p{part}_convolution")(layers.ReLU(name=f"p{part}_relu")(x))
        x = layers.Add(name=f"p{part}_add")([x, y, first] if part == 5 else [x, y])
    x = layers.GlobalAveragePooling2D(name="p7_pooling")(x)
    return models.compiled(
        keras.Model(inputs, layers.Dense(models.CLASSES, name="p7_scores")(x)), keras.optimizers.SGD(0.01, momentum=0.9)
    )


def transformer() -> keras.Model:
    """Three encoder blocks, attention and dense layers in parts of their own, on sparsely trained embeddings."""
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 8, name="p0_embedding")(inputs)
    for block in range(3):
        part = f"p{2 * block + 1}"
        y = layers.LayerNormalization(name=f"{part}_normalization")(x)
        y = layers.MultiHeadAttention(2, 4, use_bias=False, name=f"{part}_attention")(y, y)
        x = layers.Add(name=f"{part}_add")([x, y])
        part = f"p{2 * block + 2}"
        y = layers.LayerNormalization(name=f"{part}_normalization")(x)
        y = layers.Dense(16, activation="gelu", name=f"{part}_wide")(y)
        x = layers.Add(name=f"{part}_add")([x, layers.Dense(8, name=f"{part}_narrow")(y)])
    x = layers.GlobalAveragePooling1D(name="p7_pooling")(layers.LayerNormalization(name="p7_normalization")(x))
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="p7_scores")(x)))


def lstm() -> keras.Model:
    """While loops, and their gradients."""
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.TOKENS, 6, name="p0_embedding")(inputs)
    x = layers.LSTM(6, return_sequences=True, name="p1_lstm")(x)
    x = layers.Dense(6, activation="tanh", name="p2_dense")(x)
    x = layers.LSTM(6, return_sequences=True, name="p3_lstm")(x)
    x = layers.Dense(6, activation="tanh", name="p4_dense")(x)
    x = layers.LSTM(6, name="p5_lstm")(x)
    x = layers.Dense(8, activation="tanh", name="p6_dense")(x)
    return models.compiled(keras.Model(inputs, layers.Dense(models.CLASSES, name="p7_scores")(x)))


def tied() -> keras.Model:
    """The matrix that embeds tokens in the first part scores them in the last one."""
    inputs = keras.Input((models.LENGTH,), dtype="int32")
    embedding = layers.Embedding(models.TOKENS, 8, name="p0_embedding")
    x = embedding(inputs)
    for part in range(1, PARTS - 1):
        x = layers.Dense(8, activation="tanh", name=f"p{part}_dense")(x)
    x = layers.LayerNormalization(name="p7_normalization")(x)
    return models.compiled(keras.Model(inputs, models.Unembed(embedding)(x)))


def two_inputs_two_outputs() -> keras.Model:
    """One input enters, and one output leaves, half way."""
    left, right = keras.Input((models.WIDTH,), name="left"), keras.Input((models.WIDTH,), name="right")
    x = left
    for part in range(4):
        x = layers.Dense(12, activation="gelu", name=f"p{part}_dense")(x)
    x = layers.Concatenate(name="p4_concatenate")([x, right])
    x = layers.Dense(12, activation="gelu", name="p4_dense")(x)
    size = layers.Dense(1, name="p4_size")(x)
    for part in range(5, PARTS - 1):
        x = layers.Dense(12, activation="gelu", name=f"p{part}_dense")(x)
    outputs = {"kind": layers.Dense(models.CLASSES, name="p7_kind")(x), "size": size}
    model = keras.Model({"left": left, "right": right}, outputs)
    kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", {"kind": kind, "size": "mse"}, loss_weights={"kind": 1.0, "size": 0.3}, jit_compile=False)
    return model


Build = Callable[[], keras.Model]
CASES: dict[str, tuple[Build, Callable[[int], tuple[Any, Any]]]] = {
    "mlp": (mlp, models.vectors),
    "cnn": (cnn, models.images),
    "resnet": (resnet, models.images),
    "transformer": (transformer, models.sentences),
    "lstm": (lstm, models.sentences),
    "tied": (tied, models.texts),
    "two_inputs_two_outputs": (two_inputs_two_outputs, models.dict_pairs),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What ten steps give: their losses, then trained weights, the model's other variables, the optimizer's."""

    losses: list[float]
    weights: list[np.ndarray]
    states: list[np.ndarray]
    slots: list[np.ndarray]

    @property
    def variables(self) -> list[np.ndarray]:
        return [*self.weights, *self.states, *self.slots]


class Bench:
    """One model: how it trains unplaced, and its twin, which is traced once and placed again for every case."""

    def __init__(self, name: str) -> None:
        self.build, self.data = CASES[name]

    def fresh(self) -> keras.Model:
        keras.utils.set_random_seed(3)
        return self.build()

    @cached_property
    def expected(self) -> Run:
        return self.trained(self.fresh())

    @cached_property
    def control(self) -> float:
        """How far a variable goes astray when the unplaced model sums the rows of a batch in another order."""
        return max(distances(self.trained(self.fresh(), reverse=True), self.expected))

    @cached_property
    def twin(self) -> keras.Model:
        model = self.fresh()
        model.optimizer.build(model.trainable_variables)
        return model

    @cached_property
    def start(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.held]

    @property
    def held(self) -> list[Any]:
        return [*self.twin.variables, *self.twin.optimizer.variables]

    @cache  # noqa: B019 - a bench lives as long as the session
    def plan(self, devices: tuple[str, ...]) -> PlanDocument:
        """The parts in equal runs on the devices of as many stages; the loss goes with the last part."""
        pins = {f"p{part}_.*": devices[part * len(devices) // PARTS] for part in range(PARTS)}
        return partitioner.plan(
            self.twin,
            **asked(
                devices=list(dict.fromkeys(devices)),
                batch_size=ROWS,
                strategy="layer-split",
                microbatches=1,
                schedule="sequential",
                pins=pins | {"compile_loss/.*": devices[-1]},
                time_limit=20,
            ),
        )

    def placed(self, devices: tuple[str, ...], *, microbatches: int, schedule: str, recompute: bool) -> Any:
        """The twin as it was at first, placed as planned for stages on these devices, but for how batches pass."""
        plan = self.plan(devices)
        of_device = {short_name(stage.device): stage for stage in plan.stages}
        stages = tuple(
            replace(of_device[device], index=index, recompute=recompute) for index, device in enumerate(devices)
        )
        plan = replace(plan, num_microbatches=microbatches, schedule=schedule, num_stages=len(stages), stages=stages)
        for variable, value in zip(self.held, self.start, strict=True):
            variable.assign(value)
        return partitioner.place(self.twin, plan)

    def trained(self, model: Any, *, reverse: bool = False) -> Run:
        batch: Any = keras.tree.map_structure(lambda rows: rows[::-1] if reverse else rows, self.data(ROWS))
        found = losses(model, batch, STEPS)
        own = getattr(model, "model", model)
        return Run(
            losses=found,
            weights=[variable.numpy() for variable in own.trainable_variables],
            states=[variable.numpy() for variable in own.non_trainable_variables],
            slots=[variable.numpy() for variable in model.optimizer.variables],
        )


@cache
def bench(name: str) -> Bench:
    made = Bench(name)
    assert made.start  # before anything trains
    return made


def distances(found: Run, expected: Run) -> list[float]:
    """Of every variable."""
    return [relative(a, b) for a, b in zip(found.variables, expected.variables, strict=True)]


def audited(placed: Any, data: Callable[[int], Any]) -> tuple[CapturedStep, Execution, dict[str, tuple[str, str]]]:
    """The one training step of a placed model, how it is executed, and the ops that ran, with hard placement."""
    ((kind, specs),) = [pair for pair in placed.program.signatures() if pair[0] is StepKind.TRAIN]
    step = placed.program.step(kind, specs)
    execution = placed.program.execution(step)
    stepwise = emit_stepwise(step, execution, results=("loss", "y_pred"))
    batch: Any = keras.tree.map_structure(keras.ops.convert_to_tensor, data(ROWS))
    arguments = placed.program.standardize(kind, (*batch, None))
    with hard_placement():
        _, executed = executed_ops(lambda: stepwise(*arguments))
    return step, execution, executed
