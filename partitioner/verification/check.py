"""Compare a placed model with the unplaced model: outputs, loss, gradients, weights, and the device of every op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution, replica_prefix
from partitioner.ir.plan import Verification
from partitioner.ir.step import CapturedStep, LossReduction, StepKind
from partitioner.stages.coupling import batch_coupling, random_states, written_states
from partitioner.verification.audit import executed_ops, hard_placement, misplaced_ops
from partitioner.verification.data import as_dense, flat_arrays, permuted, random_batches
from partitioner.verification.reference import (
    Parts,
    Trajectory,
    nudged,
    outputs_function,
    reference_functions,
    restored,
    run_reference,
)

DEFAULT_NUM_STEPS = 5
# Relative to a tensor's norm. float32 has 24 bits (6e-8); sums of some hundred terms lose two digits of that.
DEFAULT_TOLERANCE = 1e-5
# A placed run may differ from the unplaced run by this factor more than the control does.
_CONTROL_FACTOR = 4.0
# Distance from 1 to the next larger number, with 8 and 11 bits of precision.
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_HOST = DeviceName(type="CPU", index=0).canonical

Emit = Callable[..., Any]
"""`emit(step, execution, results=..., side_effects=...)` builds a placed function."""


def verify_placed(
    model: keras.Model,
    step: CapturedStep,
    execution: Execution,
    emit: Emit,
    emit_stepwise: Emit,
    *,
    compute_loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    ran_on: Mapping[str, str],
    batches: Sequence[tuple[Any, Any]] | None = None,
    num_steps: int = DEFAULT_NUM_STEPS,
    seed: int = 0,
    differing_copies: Callable[[], Sequence[str]] = tuple,
) -> Verification:
    """Compare a placed step with the unplaced model. Variables and optimizer are unchanged when it returns.

    Three runs start from the same state: the unplaced model, the placed model, and, as a control, the unplaced model
    with the rows of each batch in another order, which shows the effect of reordered float sums. (Where the results of
    a row depend on random numbers or on other rows, the control instead starts with every weight changed by a unit in
    the last place.) A single control is a matter of chance: where it does not explain a difference in a training step,
    more controls run before the placed model counts as wrong.

    Args:
        model: The unplaced model; it shares its variables with the placed model.
        step: A captured training or predict step.
        execution: Device of each op of `step` in this process, and its microbatches.
        emit: Builds placed functions.
        emit_stepwise: Builds the same function, but Python calls each TensorFlow function in it.
        compute_loss: Loss of the training step.
        optimizer: Its optimizer.
        ran_on: The device that ran in place of each planned device, for the record.
        batches: (x, y) to run on; by default random batches.
        num_steps: Training steps.
        seed: Seed of the random batches.
        differing_copies: Gives the names of variables whose bits differ between replicas.
    """
    x_specs, y_specs, _ = step.specs
    if batches is None:
        pairs = random_batches((x_specs, y_specs), step.graph.batch_size, num_steps, seed)
    else:
        pairs = list(batches)
    if step.kind is StepKind.TRAIN:
        return _verify_training(
            model, step, execution, emit, emit_stepwise, compute_loss, optimizer, ran_on, pairs, differing_copies
        )
    return _verify_outputs(model, step, execution, emit, emit_stepwise, ran_on, pairs[:1])


def _verify_training(
    model: keras.Model,
    step: CapturedStep,
    execution: Execution,
    emit: Emit,
    emit_stepwise: Emit,
    compute_loss: Callable[..., Any] | None,
    optimizer: Any,
    ran_on: Mapping[str, str],
    batches: Sequence[tuple[Any, Any]],
    differing_copies: Callable[[], Sequence[str]],
) -> Verification:
    assert compute_loss is not None
    held = list({id(v): v for v in [*model.variables, *optimizer.variables, *step.variables.values()]}.values())
    # Rows influence each other only within a microbatch: the reference must be cut into the same microbatches.
    parts = _parts(step, execution) if batch_coupling(step.graph) else None
    reference = reference_functions(model, compute_loss, optimizer, step.specs[:2], parts=parts)
    placed_gradients = emit(step, execution, results=("y_pred", "loss", "gradients"), side_effects=False)
    placed_train = emit(step, execution, results=("y_pred", "loss"))
    placed_stepwise = emit_stepwise(step, execution, results=("y_pred", "loss"))
    with restored(held) as restore:
        expected = run_reference(*reference, batches, model.variables, restore)
        controls = _controls(model, step, reference, batches, restore)
        trajectories = [next(controls)]
        restore()
        first = placed_gradients(*batches[0], None)
        restore()
        with hard_placement():
            executed = _audited(placed_stepwise, batches[0]) if execution.is_staged else {}
            restore()
            executed |= _audited(_fresh(placed_train), batches[0])
            for batch in batches[1:]:
                placed_train(*batch, None)
        apart = tuple(differing_copies())
        shapes = [variable.shape for variable in step.trainable]
        placed = Trajectory(
            outputs=flat_arrays(first["y_pred"]),
            loss=flat_arrays(first["loss"]),
            gradients=flat_arrays(
                [None if g is None else as_dense(g, s) for g, s in zip(first["gradients"], shapes, strict=True)]
            ),
            weights=flat_arrays([variable.value for variable in model.variables]),
        )
        audit = misplaced_ops(executed, _planned(step, execution))
        settings: dict[str, Any] = {"num_steps": len(batches), "tolerance": _tolerance(step, execution)}
        result = _compared(placed, expected, trajectories, audit, ran_on, **settings)
        while not (result.passed or result.misplaced_ops) and (control := next(controls, None)):
            trajectories.append(control)
            result = _compared(placed, expected, trajectories, audit, ran_on, **settings)
    return replace(result, differing_copies=apart, passed=result.passed and not apart)


def _controls(
    model: keras.Model,
    step: CapturedStep,
    reference: tuple[Any, Any],
    batches: Sequence[tuple[Any, Any]],
    restore: Callable[[], None],
) -> Iterator[Trajectory]:
    """Runs of the unplaced model with different rounding: first with reordered sums, then with changed weights."""
    order = _control_order(model, step)
    reordered = [permuted(batch, order) for batch in batches]
    starts = [nudged(restore, model.trainable_variables, towards) for towards in (np.inf, -np.inf)]
    for start in starts if _knows_its_rows(model, step) else [restore, *starts]:
        control = run_reference(*reference, reordered, model.variables, start)
        control.outputs[:] = [array[np.argsort(order)] if array.ndim else array for array in control.outputs]
        yield control


def _parts(step: CapturedStep, execution: Execution) -> Parts:
    variables = {step.variable_names[placeholder]: variable for placeholder, variable in step.variables.items()}
    states = sorted(written_states(step.graph) & variables.keys())
    return Parts(
        num_microbatches=execution.num_microbatches,
        num_replicas=execution.num_replicas,
        states=[variables[name] for name in states],
        seeds=[variables[name] for name in states if name in random_states(step.graph)],
        adds_up=step.loss_reduction is LossReduction.SUM,
    )


def _verify_outputs(
    model: keras.Model,
    step: CapturedStep,
    execution: Execution,
    emit: Emit,
    emit_stepwise: Emit,
    ran_on: Mapping[str, str],
    batches: Sequence[tuple[Any, Any]],
) -> Verification:
    num_parts = execution.num_microbatches * execution.num_replicas if batch_coupling(step.graph) else 1
    reference = outputs_function(model, step.specs[0], num_parts=num_parts)
    placed = emit(step, execution, results=("y_pred",))
    placed_stepwise = emit_stepwise(step, execution, results=("y_pred",))
    x, _ = batches[0]
    expected = flat_arrays(reference(x))
    order = _control_order(model, step)
    control = [a[np.argsort(order)] for a in flat_arrays(reference(permuted(x, order)))]
    with hard_placement():
        outputs, executed = executed_ops(lambda: _fresh(placed)(x, None, None))
        if execution.is_staged:
            executed |= _audited(placed_stepwise, (x, None))
    return _compared(
        _outputs_only(flat_arrays(outputs["y_pred"])),
        _outputs_only(expected),
        [_outputs_only(control)],
        misplaced_ops(executed, _planned(step, execution)),
        ran_on,
        num_steps=0,
    )


def _outputs_only(outputs: list[np.ndarray]) -> Trajectory:
    return Trajectory(outputs=outputs, loss=[], gradients=[], weights=[])


def _compared(
    placed: Trajectory,
    expected: Trajectory,
    controls: Sequence[Trajectory],
    audit: tuple[int, tuple[str, ...]],
    ran_on: Mapping[str, str],
    *,
    num_steps: int,
    tolerance: float = DEFAULT_TOLERANCE,
) -> Verification:
    """Compare tensor by tensor: a difference passes if it is below the tolerance, or near a control's difference.

    Each tensor is decided by itself, because a gradient that is zero except for rounding (of a key's bias in attention)
    differs by its whole norm, and must not excuse other tensors.
    """
    keys = ("outputs", "loss", "gradients", "weights")
    absolute = {key: _max_abs(getattr(placed, key), getattr(expected, key)) for key in keys}
    relative = {key: _max_rel(getattr(placed, key), getattr(expected, key)) for key in keys}
    explained = {
        key: np.max([_rel(getattr(control, key), getattr(expected, key)) for control in controls], axis=0)
        for key in keys
    }
    compared, misplaced = audit
    return Verification(
        outputs_max_abs_diff=absolute["outputs"],
        outputs_max_rel_diff=relative["outputs"],
        loss_max_abs_diff=absolute["loss"],
        gradients_max_abs_diff=absolute["gradients"],
        gradients_max_rel_diff=relative["gradients"],
        weights_max_abs_diff=absolute["weights"],
        weights_max_rel_diff=relative["weights"],
        control_max_abs_diff=max(
            _max_abs(getattr(control, key), getattr(expected, key)) for control in controls for key in keys
        ),
        control_max_rel_diff=max(float(ratio) for ratios in explained.values() for ratio in ratios),
        num_steps=num_steps,
        num_ops_checked=compared,
        misplaced_ops=misplaced,
        ran_on=dict(ran_on),
        tolerance=tolerance,
        passed=not misplaced
        and all(
            difference <= max(tolerance, _CONTROL_FACTOR * allowed)
            for key in keys
            for difference, allowed in zip(
                _rel(getattr(placed, key), getattr(expected, key)), explained[key], strict=True
            )
        ),
    )


def _tolerance(step: CapturedStep, execution: Execution) -> float:
    """The allowed relative difference: that of float32, or of the dtype to which microbatches round gradients."""
    kinds = {tensor.spec.dtype for tensor in step.graph.tensors}
    narrow = [dtype for dtype in ("bfloat16", "float16") if dtype in kinds]
    if execution.num_microbatches == 1 or not narrow:
        return DEFAULT_TOLERANCE
    return _CONTROL_FACTOR * _EPSILON[narrow[0]]


def _planned(step: CapturedStep, execution: Execution) -> dict[str, str]:
    """The device of every op: its planned device, or that of the lookup table it uses."""
    tables = [op.name for op in step.graph.ops if op.takes_table]
    on_host = {replica_prefix(replica) + name: _HOST for replica in range(execution.num_replicas) for name in tables}
    return execution.placement_everywhere | on_host


def _audited(function: Any, batch: tuple[Any, Any]) -> dict[str, tuple[str, str]]:
    """The ops that a call of `function` executed, and their devices."""
    return executed_ops(lambda: function(*batch, None))[1]


def _fresh(function: Any) -> Any:
    """A new function around `function`: TensorFlow records partition graphs only for new functions."""
    return tf.function(lambda *arguments: function(*arguments), autograph=False)


def _control_order(model: keras.Model, step: CapturedStep) -> np.ndarray:
    order = np.arange(step.graph.batch_size)
    return order if _knows_its_rows(model, step) else order[::-1]


def _knows_its_rows(model: keras.Model, step: CapturedStep) -> bool:
    """Whether the results of a row depend on its position in the batch, by random numbers or by other rows."""
    draws = any(getattr(layer, "_seed_generators", ()) for layer in model._flatten_layers())
    return draws or bool(step.graph.mixing_layer)


def _max_abs(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest difference of two lists of arrays; infinite where only one of two values is finite."""
    return max((_difference(a, b, np.max) for a, b in zip(actual, expected, strict=True)), default=0.0)


def _max_rel(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return max(_rel(actual, expected), default=0.0)


def _rel(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Norm of each tensor's difference over the norm of the tensor itself (Frobenius); 0 / 0 counts as 0."""
    ratios = []
    for a, b in zip(actual, expected, strict=True):
        difference, norm = _difference(a, b, np.linalg.norm), float(np.linalg.norm(b))
        ratios.append(difference and (difference / norm if norm else float("inf")))
    return ratios


def _difference(a: np.ndarray, b: np.ndarray, measure: Callable[[np.ndarray], Any]) -> float:
    same = np.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    with np.errstate(invalid="ignore"):
        delta = np.where(same, 0.0, np.abs(a - b))
    value = float(measure(delta.ravel())) if delta.size else 0.0
    return value if np.isfinite(value) else float("inf")
