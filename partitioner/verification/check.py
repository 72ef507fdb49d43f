"""Compare a placed model with the unplaced model: outputs, loss, gradients, weights, and the device of every op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from partitioner.emit.graph.rewriting import op_by_op
from partitioner.emit.graph.variables import held_variable
from partitioner.emit.pipeline.microbatches import HOST
from partitioner.emit.xla.refusals import refused_ops
from partitioner.errors import VerificationError
from partitioner.ir.execution import Execution, replica_prefix
from partitioner.ir.plan import Verification
from partitioner.ir.step import CapturedStep, LossReduction, StepKind
from partitioner.spelling import argument
from partitioner.stages.coupling import batch_coupling, random_states, written_states
from partitioner.stages.programs import stage_programs
from partitioner.verification.audit import executed_ops, hard_placement, misplaced_ops, without_tensor_float_32
from partitioner.verification.compare import compared, narrow_dtype, outputs_only, runs_on_gpu, tolerance_of
from partitioner.verification.data import as_dense, flat_arrays, permuted, random_batches
from partitioner.verification.host_copies import HostCopies
from partitioner.verification.reference import (
    Parts,
    Trajectory,
    nudged,
    outputs_function,
    own_step_function,
    reference_functions,
    restored,
    run_reference,
)

DEFAULT_NUM_STEPS = 5

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
    with_reference: bool = True,
) -> Verification:
    """Compare a placed step with the unplaced model. Variables and optimizer are unchanged when it returns.

    Three runs start from the same state: the unplaced model, the placed model, and, as a control, the unplaced model
    with the rows of each batch in another order, which shows the effect of reordered float sums. (Where the results of
    a row depend on random numbers or on other rows, the control instead starts with every weight changed by a unit in
    the last place.) A single control is a matter of chance: where it does not explain a difference in a training step,
    more controls run before the placed model counts as wrong. Kernels of GPUs round unlike those of the host: there the
    placed model at last controls itself, with changed weights.

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
        with_reference: Whether the unplaced model runs too. Without it only devices and replicas are checked.

    Raises:
        VerificationError: A device ran out of memory.
    """
    x_specs, y_specs, _ = step.specs
    pairs = batches or random_batches((x_specs, y_specs), step.graph.batch_size, num_steps, seed)
    subject = _Subject(model, step, execution, emit, emit_stepwise, ran_on, with_reference)
    try:
        with without_tensor_float_32(), op_by_op():
            if step.kind is not StepKind.TRAIN:
                return _verify_outputs(subject, pairs[0])
            if step.is_own:
                return _verify_own_step(subject, pairs)
            return _verify_training(subject, compute_loss, optimizer, pairs, differing_copies)
    except tf.errors.ResourceExhaustedError as error:
        raise VerificationError(
            "a device ran out of memory while the placed model was verified",
            notes=[error.message.strip().splitlines()[0]],
            help=f"plan with a smaller {argument('memory_limit')}, or with more {argument('microbatches')}",
        ) from error


@dataclass(frozen=True, slots=True)
class _Subject:
    """A placed step and the model that it is compared with; see `verify_placed`."""

    model: keras.Model
    step: CapturedStep
    execution: Execution
    emit: Emit
    emit_stepwise: Emit
    ran_on: Mapping[str, str]
    with_reference: bool

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the unplaced model, as it does the placed one, where it can compile all of it."""
        return bool(self.execution.compiled) and not refused_ops(self.step, [HOST])


def _verify_training(
    subject: _Subject,
    compute_loss: Callable[..., Any] | None,
    optimizer: Any,
    batches: Sequence[tuple[Any, Any]],
    differing_copies: Callable[[], Sequence[str]],
) -> Verification:
    assert compute_loss is not None
    model, step, execution = subject.model, subject.step, subject.execution
    held = list({id(v): v for v in [*model.variables, *optimizer.variables, *step.variables.values()]}.values())
    # Rows influence each other, and sums are rounded to 16 bits, within a microbatch: then the reference is cut alike.
    is_cut_alike = batch_coupling(step.graph) or (execution.num_parts > 1 and narrow_dtype(step.graph))
    parts = _parts(step, execution) if is_cut_alike else None
    reference = partial(reference_functions, model, compute_loss, optimizer, step.specs[:2], parts=parts)
    functions = reference(jit_compile=subject.is_compiled)
    placed_gradients = subject.emit(step, execution, results=("y_pred", "loss", "gradients"), side_effects=False)
    placed_train = subject.emit(step, execution, results=("y_pred", "loss"))
    placed_stepwise = subject.emit_stepwise(step, execution, results=("y_pred", "loss"))
    with restored(held) as restore:
        expected, controls = None, iter(())
        if subject.with_reference:
            copies = HostCopies(held, [optimizer])
            with copies.in_use():
                expected = run_reference(*functions, batches, model.variables, restore)
            controls = _controls(model, step, functions, batches, restore, copies)
            if subject.is_compiled and not any(op.draws for op in step.graph.ops):
                controls = chain(controls, _uncompiled(reference, batches, model, restore, copies))
        trajectories = list(islice(controls, 1))

        def run_placed(start: Callable[[], None], first_step: Callable[..., Any]) -> Trajectory:
            """Gradients on the first batch, then a training step per batch; `first_step` makes the first of them."""
            start()
            first = placed_gradients(*batches[0], None)
            start()
            with hard_placement(), op_by_op():
                first_step(*batches[0], None)
                for batch in batches[1:]:
                    placed_train(*batch, None)
            gradients = zip(first.get("gradients", ()), [variable.shape for variable in step.trainable], strict=True)
            return Trajectory(
                outputs=flat_arrays(first["y_pred"]),
                loss=flat_arrays(first["loss"]),
                gradients=flat_arrays([None if g is None else as_dense(g, shape) for g, shape in gradients]),
                weights=flat_arrays([variable.value for variable in model.variables]),
            )

        executed: dict[str, tuple[str, str]] = {}

        def audited_step(*arguments: Any) -> None:
            if execution.is_staged:
                executed.update(executed_ops(lambda: placed_stepwise(*arguments))[1])
                restore()
            executed.update(executed_ops(lambda: _fresh(placed_train)(*arguments))[1])

        placed = run_placed(restore, audited_step)
        apart = tuple(differing_copies())
        audit = _misplaced(executed, step, execution)
        tolerance = tolerance_of(step.graph, execution, subject.ran_on)
        names = {"weights": [variable.path for variable in model.variables]}
        gradients = zip(step.trainable, step.outputs.get("gradients", ()), strict=True)
        names["gradients"] = [variable.path for variable, gradient in gradients if gradient is not None]
        settings: dict[str, Any] = {"num_steps": len(batches), "tolerance": tolerance, "names": names}
        result = compared(placed, expected, trajectories, audit, subject.ran_on, **settings)
        with op_by_op():
            while not (result.passed or result.misplaced_ops) and (control := next(controls, None)):
                trajectories.append(control)
                result = compared(placed, expected, trajectories, audit, subject.ran_on, **settings)
        if not (result.passed or result.misplaced_ops) and runs_on_gpu(subject.ran_on):
            again = run_placed(nudged(restore, model.trainable_variables), placed_train)
            result = compared(placed, expected, trajectories, audit, subject.ran_on, again=again, **settings)
    return replace(result, differing_copies=apart, passed=result.passed and not apart)


def _verify_own_step(subject: _Subject, batches: Sequence[tuple[Any, Any]]) -> Verification:
    """Compare a step that the model defines itself: the logs of the first step, and every variable after all."""
    model, step, execution = subject.model, subject.step, subject.execution
    held = list({id(v): v for v in [*model.variables, *step.variables.values()]}.values())
    placed_step = subject.emit(step, execution, results=("logs",))

    def run(function: Any, batches: Sequence[tuple[Any, Any]], start: Callable[[], None]) -> Trajectory:
        start()
        logs, *_ = [function(*batch, None) for batch in batches]
        weights = flat_arrays([held_variable(variable) for variable in held])
        return Trajectory(outputs=[], loss=flat_arrays(logs), gradients=[], weights=weights)

    with restored(held) as restore:
        expected, controls = None, []
        if subject.with_reference:
            order = _control_order(model, step)
            reordered = [permuted(batch, order) for batch in batches]
            starts = [restore, *(nudged(restore, step.trainable, towards) for towards in (np.inf, -np.inf))]
            with HostCopies(held, step.optimizers).in_use():
                reference = own_step_function(model, step.kind, step.specs, jit_compile=subject.is_compiled)
                expected = run(reference, batches, restore)
                controls = [run(reference, reordered, start) for start in starts]
        with hard_placement(), op_by_op():
            restore()
            executed = executed_ops(lambda: _fresh(placed_step)(*batches[0], None))[1]
            placed = run(lambda *arguments: placed_step(*arguments)["logs"], batches, restore)
        audit = _misplaced(executed, step, execution)
        tolerance = tolerance_of(step.graph, execution, subject.ran_on)
        return compared(placed, expected, controls, audit, subject.ran_on, num_steps=len(batches), tolerance=tolerance)


def _controls(
    model: keras.Model,
    step: CapturedStep,
    reference: tuple[Any, Any],
    batches: Sequence[tuple[Any, Any]],
    restore: Callable[[], None],
    copies: HostCopies,
) -> Iterator[Trajectory]:
    """Runs of the unplaced model with different rounding: first with reordered sums, then with changed weights."""
    order = _control_order(model, step)
    reordered = [permuted(batch, order) for batch in batches]
    starts = [nudged(restore, model.trainable_variables, towards) for towards in (np.inf, -np.inf)]
    for start in starts if _knows_its_rows(model, step) else [restore, *starts]:
        with copies.in_use():
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


def _verify_outputs(subject: _Subject, batch: tuple[Any, Any]) -> Verification:
    model, step, execution = subject.model, subject.step, subject.execution
    num_parts = execution.num_microbatches * execution.num_replicas if batch_coupling(step.graph) else 1
    reference = outputs_function(model, step.specs[0], num_parts=num_parts, jit_compile=subject.is_compiled)
    placed = subject.emit(step, execution, results=("y_pred",))
    placed_stepwise = subject.emit_stepwise(step, execution, results=("y_pred",))
    x, _ = batch
    expected, controls, held = None, [], list(step.variables.values())
    with restored(held) as restore:  # a cache or a random state changes in inference too
        if subject.with_reference:
            order = _control_order(model, step)
            with HostCopies(held).in_use():
                expected = outputs_only(flat_arrays(reference(x)))
                restore()
                reordered = flat_arrays(reference(permuted(x, order)))
            controls = [outputs_only([array[np.argsort(order)] if array.ndim else array for array in reordered])]
        with hard_placement(), op_by_op():
            restore()
            outputs, executed = executed_ops(lambda: _fresh(placed)(x, None, None))
            if execution.is_staged:
                restore()
                executed |= _audited(placed_stepwise, (x, None))
    audit = _misplaced(executed, step, execution)
    placed_outputs = outputs_only(flat_arrays(outputs["y_pred"]))
    tolerance = tolerance_of(step.graph, execution, subject.ran_on)
    return compared(placed_outputs, expected, controls, audit, subject.ran_on, num_steps=0, tolerance=tolerance)


def _misplaced(
    executed: Mapping[str, tuple[str, str]], step: CapturedStep, execution: Execution
) -> tuple[int, tuple[str, ...]]:
    """The number of executed ops that are planned, and a line for each that ran elsewhere.

    An op is planned on its device, or on that of the lookup table it uses. Small arithmetic that stages on several
    devices do each for itself may run on all of them.
    """
    replicas = [(number, replica_prefix(number)) for number in range(execution.num_replicas)]
    on_host = {prefix + op.name: HOST for _, prefix in replicas for op in step.graph.ops if op.takes_table}
    devices: dict[str, set[str]] = {}
    if execution.is_staged:
        for program in stage_programs(step, execution, results=step.results).programs:
            for number, prefix in replicas:
                device = execution.device(program.device, number)
                for name in program.ops:
                    devices.setdefault(prefix + name, set()).add(device)
    copies = {name: of_copies for name, of_copies in devices.items() if len(of_copies) > 1}
    return misplaced_ops(executed, execution.placement_everywhere | on_host, copies)


def _audited(function: Any, batch: tuple[Any, Any]) -> dict[str, tuple[str, str]]:
    """The ops that a call of `function` executed, and their devices."""
    return executed_ops(lambda: function(*batch, None))[1]


def _fresh(function: Any) -> Any:
    """A new function around `function`: TensorFlow records partition graphs only for new functions."""
    return tf.function(lambda *arguments: function(*arguments), autograph=False)


def _uncompiled(
    reference: Callable[..., tuple[Any, Any]],
    batches: Sequence[tuple[Any, Any]],
    model: keras.Model,
    restore: Callable[[], None],
    copies: HostCopies,
) -> Iterator[Trajectory]:
    """A run of the unplaced model without XLA, which rounds differently."""
    with copies.in_use():
        control = run_reference(*reference(jit_compile=False), batches, model.variables, restore)
    yield control


def _control_order(model: keras.Model, step: CapturedStep) -> np.ndarray:
    order = np.arange(step.graph.batch_size)
    return order if _knows_its_rows(model, step) else order[::-1]


def _knows_its_rows(model: keras.Model, step: CapturedStep) -> bool:
    """Whether the results of a row depend on its position in the batch, by random numbers or by other rows."""
    draws = any(getattr(layer, "_seed_generators", ()) for layer in model._flatten_layers())
    return draws or bool(step.graph.mixing_layer)
