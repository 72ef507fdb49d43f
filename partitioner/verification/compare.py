"""How far two runs are apart, and whether that is more than rounding explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from partitioner.ir.devices import DeviceName
from partitioner.ir.execution import Execution
from partitioner.ir.op_graph import OpGraph
from partitioner.ir.plan import Verification
from partitioner.verification.reference import Trajectory

# Relative to a tensor's norm. float32 has 24 bits (6e-8); sums of some hundred terms lose two digits of that.
DEFAULT_TOLERANCE = 1e-5
# Of a GPU against the host, without TensorFloat-32: libraries of GPUs sum by other algorithms, which may lose a digit.
OTHER_KERNELS_TOLERANCE = 1e-4
# A placed run may differ from the unplaced run by this factor more than the control does.
_CONTROL_FACTOR = 4.0
# Distance from 1 to the next larger number, with 8 and 11 bits of precision.
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class _Difference(NamedTuple):
    """How far a tensor is from the reference's, and the controls at most; relative to its norm."""

    ratio: float
    control: float
    title: str

    @property
    def is_explained(self) -> bool:
        return self.ratio <= _CONTROL_FACTOR * self.control

    def __str__(self) -> str:
        return f"{self.title} {self.ratio:.1e} (control {self.control:.1e})"


def outputs_only(outputs: list[np.ndarray]) -> Trajectory:
    """A run of inference."""
    return Trajectory(outputs=outputs, loss=[], gradients=[], weights=[])


def compared(
    placed: Trajectory,
    reference: Trajectory | None,
    controls: Sequence[Trajectory],
    audit: tuple[int, tuple[str, ...]],
    ran_on: Mapping[str, str],
    *,
    num_steps: int,
    tolerance: float = DEFAULT_TOLERANCE,
    again: Trajectory | None = None,
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Verification:
    """Compare tensor by tensor: a difference passes if it is below the tolerance, or near a control's difference.

    Each tensor is decided by itself, because a gradient that is zero except for rounding (of a key's bias in attention)
    differs by its whole norm, and must not excuse other tensors. Without a reference, nothing differs.

    Args:
        placed: The placed run.
        reference: The unplaced run, if there was one.
        controls: Unplaced runs that round differently.
        audit: The number of ops whose device was compared, and a line for each misplaced op.
        ran_on: The device that ran in place of each planned device.
        num_steps: Training steps of each run.
        tolerance: Relative difference that passes in any case.
        again: The placed run once more, rounding differently. What is nothing but rounding there differs from it.
        names: Names of the variables of `gradients` and of `weights`.
    """
    expected, controls = (reference, controls) if reference else (placed, [placed])
    pairs = [(control, expected) for control in controls] + ([(again, placed)] if again else [])
    keys = ("outputs", "loss", "gradients", "weights")
    absolute = {key: max_abs(getattr(placed, key), getattr(expected, key)) for key in keys}
    ratios = {key: relative_differences(getattr(placed, key), getattr(expected, key)) for key in keys}
    relative = {key: max(ratios[key], default=0.0) for key in keys}
    explained = {
        key: np.max([relative_differences(getattr(one, key), getattr(other, key)) for one, other in pairs], axis=0)
        for key in keys
    }
    compared, misplaced = audit
    differences = [
        _Difference(ratio, float(control), _title(key, index, names))
        for key in keys
        for index, (ratio, control) in enumerate(zip(ratios[key], explained[key], strict=True))
    ]
    beyond = sorted((tensor for tensor in differences if not tensor.ratio <= tolerance), reverse=True)
    unexplained = tuple(str(tensor) for tensor in beyond if not tensor.is_explained)
    return Verification(
        outputs_max_abs_diff=absolute["outputs"],
        outputs_max_rel_diff=relative["outputs"],
        loss_max_abs_diff=absolute["loss"],
        gradients_max_abs_diff=absolute["gradients"],
        gradients_max_rel_diff=relative["gradients"],
        weights_max_abs_diff=absolute["weights"],
        weights_max_rel_diff=relative["weights"],
        control_max_abs_diff=max(
            max_abs(getattr(control, key), getattr(expected, key)) for control in controls for key in keys
        ),
        control_max_rel_diff=max(float(ratio) for ratios in explained.values() for ratio in ratios),
        num_steps=num_steps,
        num_ops_checked=compared,
        misplaced_ops=misplaced,
        ran_on=dict(ran_on),
        tolerance=tolerance,
        unexplained=unexplained,
        explained=tuple(str(tensor) for tensor in beyond if tensor.is_explained),
        other_max_rel_diff=max((tensor.ratio for tensor in differences if tensor.ratio <= tolerance), default=0.0),
        passed=not misplaced and not unexplained,
    )


def _title(key: str, index: int, names: Mapping[str, Sequence[str]]) -> str:
    """`gradients of dense/kernel`, or `outputs 0` where tensors have no names."""
    return f"{key} of {names[key][index]}" if key in names else f"{key} {index}"


def tolerance_of(graph: OpGraph, execution: Execution, ran_on: Mapping[str, str]) -> float:
    """The allowed relative difference: that of float32, or of a narrower dtype whose rounding shows.

    Microbatches round their gradients to it, and kernels of GPUs round other sums to it than those of the host.
    """
    is_on_gpu = runs_on_gpu(ran_on)
    narrow = narrow_dtype(graph)
    if not narrow or not (is_on_gpu or execution.num_parts > 1):
        return OTHER_KERNELS_TOLERANCE if is_on_gpu else DEFAULT_TOLERANCE
    return _CONTROL_FACTOR * _EPSILON[narrow]


def tolerance_of_copies(ran_on: Mapping[str, str]) -> float:
    """The allowed relative difference between the copies of a variable: none on CPUs, rounding on GPUs.

    GPUs add up the rows of a sparse gradient by atomic additions, in no fixed order (UnsortedSegmentSum).
    """
    return DEFAULT_TOLERANCE if runs_on_gpu(ran_on) else 0.0


def runs_on_gpu(ran_on: Mapping[str, str]) -> bool:
    """Whether any planned device was a GPU where the model ran."""
    return any(DeviceName.parse(name).type == "GPU" for name in ran_on.values())


def narrow_dtype(graph: OpGraph) -> str:
    """The narrowest float dtype below 32 bits that a graph computes in; empty if there is none."""
    dtypes = {tensor.spec.dtype for tensor in graph.tensors}
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), "")


def max_abs(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest difference of two lists of arrays; infinite where only one of two values is finite."""
    return max((difference(a, b, np.max) for a, b in zip(actual, expected, strict=True)), default=0.0)


def relative_differences(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Norm of each tensor's difference over the norm of the tensor itself (Frobenius); 0 / 0 counts as 0."""
    ratios = []
    for a, b in zip(actual, expected, strict=True):
        delta, norm = difference(a, b, np.linalg.norm), float(np.linalg.norm(b))
        ratios.append(delta and (delta / norm if norm else float("inf")))
    return ratios


def difference(a: np.ndarray, b: np.ndarray, measure: Callable[[np.ndarray], Any]) -> float:
    """A measure (maximum, norm) of `|a - b|`, where both NaN or both the same infinity count as equal."""
    same = np.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    with np.errstate(invalid="ignore"):
        delta = np.where(same, 0.0, np.abs(a - b))
    value = float(measure(delta.ravel())) if delta.size else 0.0
    return value if np.isfinite(value) else float("inf")
