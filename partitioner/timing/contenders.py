"""What a placed model is timed beside: the same model on one device, and under TensorFlow's MirroredStrategy."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from partitioner.binding.place import place_traced
from partitioner.binding.traced_step import traced_again
from partitioner.emit.asynchronous.model import AsyncPlacedModel
from partitioner.emit.cluster.runtime import set_up_devices
from partitioner.emit.keras.placed_model import PlacedModel
from partitioner.ir.devices import DeviceName
from partitioner.ir.plan import JitCompile, PlanDocument, Strategy, Updates
from partitioner.ir.step import CapturedStep, StepKind

PLAN, ONE_DEVICE, MIRRORED = "the plan", "one device", "MirroredStrategy"
_COLLECTIVE_KEYS = itertools.count(10**6, 10**5)


class NotComparedError(Exception):
    """A contender cannot be run; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A placed model, and what is needed to run the same model in another way.

    Attributes:
        model: The unplaced model.
        placed: The placed model.
        plan: Its plan.
        step: The planned step.
        batch: (x, y); y is None in inference.
        build: Builds the model anew; None to clone it.
    """

    model: keras.Model
    placed: PlacedModel
    plan: PlanDocument
    step: CapturedStep
    batch: tuple[Any, Any]
    build: Callable[[], keras.Model] | None

    @property
    def ran_on(self) -> dict[str, str]:
        """The device that runs in place of each used device of the plan."""
        devices = set_up_devices(sorted({*self.plan.placement.values(), *self.plan.used_devices}))
        return {name: devices[name] for name in self.plan.used_devices}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A contender that is built: `run` runs so many steps to their end."""

    devices: tuple[str, ...]
    predicted_seconds: float | None
    run: Callable[[], object]
    num_steps: int = 1


def as_planned(subject: Subject) -> Ready:
    """The placed model."""
    devices, seconds = tuple(subject.ran_on.values()), subject.plan.predicted.step_seconds
    return _ready(subject.placed, subject, devices, seconds)


def on_one_device(subject: Subject) -> Ready:
    """The model on the first device of the plan, with variables of its own.

    Raises:
        NotComparedError: The plan uses no other device, the model does not fit there, or it cannot be built anew.
    """
    plan, first = subject.plan, subject.plan.used_devices[0]
    if len(plan.used_devices) == 1:
        raise NotComparedError("not run: the plan itself uses one device")
    short = DeviceName.parse(first).short
    predicted = [b for b in plan.baselines if b.name in ("single-device", f"single-device {short}")]
    if predicted and not predicted[0].fits:
        raise NotComparedError(f"not run: the model does not fit on {short}, by the plan")
    alone = _on_one_device(plan, first)
    model = _built_anew(subject)
    x, y = subject.batch
    traced = traced_again(model, alone, example_inputs=x, example_targets=y)
    host = DeviceName.parse(first).host.canonical
    devices = set_up_devices(sorted({*plan.placement.values(), *plan.used_devices, host}))
    placed = place_traced(traced, alone, model, devices)
    return _ready(placed, subject, (devices[first],), predicted[0].step_seconds if predicted else None)


def mirrored(subject: Subject) -> Ready:
    """The model under MirroredStrategy on the devices of the plan, each with its part of the batch.

    Raises:
        NotComparedError: Plain data parallelism does not apply, or the model cannot be built anew.
    """
    devices = subject.ran_on
    names = [DeviceName.parse(name) for name in devices.values()]
    rows, count = subject.plan.model.batch_size, len(names)
    if subject.step.kind is not StepKind.TRAIN:
        raise NotComparedError("not run: it is for training")
    if count == 1:
        raise NotComparedError("not run: the plan uses one device")
    if not all(name.is_local for name in names) or len({name.type for name in names}) > 1:
        raise NotComparedError("not run: it takes devices of one kind in this process")
    if subject.step.uncuttable:
        raise NotComparedError(f"not run: the batch cannot be divided: {subject.step.uncuttable}")
    if rows % count:
        raise NotComparedError(f"not run: {rows:,} rows cannot be divided evenly over {count} devices")
    strategy = _strategy([name.short for name in names])
    with strategy.scope():
        model: Any = _built_anew(subject)
    part = tf.nest.map_structure(lambda value: None if value is None else value[: rows // count], subject.batch)
    model.fit(_dataset(part), steps_per_epoch=1, shuffle=False, verbose=0)  # makes the variables of the optimizer
    data = iter(strategy.distribute_datasets_from_function(lambda _: _dataset(part)))
    train = model.make_train_function()
    return Ready(
        devices=tuple(devices.values()),
        predicted_seconds=None,
        run=lambda: _ended(train(data)),
        num_steps=model.steps_per_execution,
    )


def _strategy(devices: Sequence[str]) -> Any:
    """A MirroredStrategy beside which others may be used in this process.

    All of them number their collective ops alike: TensorFlow takes those of two strategies for the same, and when their
    shapes differ, no collective op of the process works any more. TensorFlow's own tests number them this way.
    """

    class Strategy(tf.distribute.MirroredStrategy):
        _collective_key_base = next(_COLLECTIVE_KEYS)

    return Strategy(list(devices))


def _ready(placed: PlacedModel, subject: Subject, devices: tuple[str, ...], predicted: float | None) -> Ready:
    run, num_steps = _steps(placed, subject)
    return Ready(devices=devices, predicted_seconds=predicted, run=run, num_steps=num_steps)


def _steps(placed: PlacedModel, subject: Subject) -> tuple[Callable[[], object], int]:
    """Runs steps to their end, as `fit` or `predict` does; and how many in a call."""
    x, y = subject.batch
    if subject.step.kind is not StepKind.TRAIN:
        return (lambda: placed.predict_on_batch(x)), 1
    if isinstance(placed, AsyncPlacedModel):
        return (lambda: placed.train_on_batch(x, y)), 1  # waits until all replicas have applied their parts
    data, train = iter(_dataset(subject.batch)), placed.make_train_function()
    return (lambda: _ended(train(data))), placed.steps_per_execution


def _dataset(batch: tuple[Any, Any]) -> tf.data.Dataset:
    """The batch, again and again."""
    x, y = batch
    return tf.data.Dataset.from_tensors((x,) if y is None else (x, y)).repeat()


def _ended(results: Any) -> object:
    return [value.numpy() if hasattr(value, "numpy") else value for value in tf.nest.flatten(results)]


def _on_one_device(plan: PlanDocument, device: str) -> PlanDocument:
    """The plan with everything on one device; ops that it cannot run stay on its host."""
    layers = tuple(name for stage in plan.stages_of(0) for name in stage.layers)
    return plan.placed_anew(
        {},  # by their layers, whose names a graph traced anew has too
        strategy=Strategy.SINGLE,
        num_replicas=1,
        num_stages=1,
        num_microbatches=1,
        schedule="sequential",
        updates=Updates.SYNC.value,
        stages=(
            replace(plan.stages[0], index=0, replica=0, device=device, layers=layers, recompute=False, selective=False),
        ),
        layers=tuple(replace(layer, device=device) for layer in plan.layers),
    )


def _built_anew(subject: Subject) -> keras.Model:
    """A model alike with variables of its own, compiled as the placed model is.

    Raises:
        NotComparedError: Keras cannot clone the model.
    """
    if subject.build is not None:
        model = subject.build()
    else:
        try:
            model = keras.models.clone_model(subject.model)
        except Exception as error:  # of any kind: the model's own code runs
            raise NotComparedError(
                f"not run: Keras cannot clone this model ({type(error).__name__}); build=build_model makes another one"
            ) from error
    if subject.placed.optimizer is not None:
        model.compile(**_compile_arguments(subject.placed))
    return model


def _compile_arguments(placed: PlacedModel) -> Mapping[str, Any]:
    own: Any = placed
    given = dict(own._compile_config.config)
    optimizer: Any = placed.optimizer
    fresh = {name: copy.deepcopy(given.get(name)) for name in ("metrics", "weighted_metrics")}
    jit_compile = {JitCompile.ON: True, JitCompile.OFF: False}.get(own.asked_to_compile, "auto")
    optimizer = type(optimizer).from_config(optimizer.get_config())
    return {**given, **fresh, "optimizer": optimizer, "jit_compile": jit_compile}
