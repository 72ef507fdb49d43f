"""The verification in words: where ops ran, how far the numbers are from the unplaced model's."""

from __future__ import annotations

from partitioner.ir.devices import short_name, short_ranges
from partitioner.ir.plan import Verification
from partitioner.ir.units import plural

_MAX_LISTED = 8


def verification_lines(
    verification: Verification, *, training: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Sentences, and the rows of a table: compared values, absolute difference, relative difference.

    A relative difference is the norm of a tensor's difference over its norm, at worst; `-` where none was taken.
    """
    return tuple(_sentences(verification, training)), tuple(_rows(verification, training))


def brief_verification(verification: Verification, *, training: bool) -> tuple[str, ...]:
    """Three sentences: whether it failed or where ops ran, how far the numbers are off, where that was measured."""
    where = f"measured on {_ran_on_ranges(verification.ran_on)}{_steps(verification, training)}"
    first, second, *_ = _sentences(verification, training)
    if verification.misplaced_ops:
        return first, second, where
    worst = second if second.startswith("FAILED") else first
    return worst, verification.note or _largest_difference(verification, training), where


def _largest_difference(verification: Verification, training: bool) -> str:
    if verification.passed and verification.explained:
        others, count = _difference(verification.other_max_rel_diff), plural(len(verification.explained), "tensor")
        return f"relative differences up to {others}, but for {count} as far off in the control"
    differences = {"outputs": verification.outputs_max_rel_diff}
    if training:
        differences["gradients"] = verification.gradients_max_rel_diff
        differences["weights"] = verification.weights_max_rel_diff
    name = max(differences, key=lambda name: differences[name])
    largest, control = differences[name], _difference(verification.control_max_rel_diff)
    where = f" ({name})" if largest else ""
    return f"largest relative difference {_difference(largest)}{where}; of the control run {control}"


def _ran_on_ranges(ran_on: dict[str, str]) -> str:
    same = [planned for planned, actual in ran_on.items() if planned == actual]
    stood_for = {planned: actual for planned, actual in ran_on.items() if planned != actual}
    parts = short_ranges(same)
    if stood_for:
        actual, planned = (", ".join(short_ranges(dict.fromkeys(names))) for names in (stood_for.values(), stood_for))
        parts.append(f"{actual} standing in for {planned}")
    return ", ".join(parts)


def _steps(verification: Verification, training: bool) -> str:
    return f", {plural(verification.num_steps, 'optimizer step')}" if training else ""


def _sentences(verification: Verification, training: bool) -> list[str]:
    checked = plural(verification.num_ops_checked, "op")
    if verification.misplaced_ops:
        named = ", ".join(verification.misplaced_ops[:_MAX_LISTED])
        more = len(verification.misplaced_ops) - _MAX_LISTED
        lines = [
            f"FAILED: {len(verification.misplaced_ops):,} of {checked} ran on another device than planned",
            f"misplaced: {named}{f' and {more:,} more' if more > 0 else ''}",
        ]
    else:
        lines = [f"every one of {checked} ran where it was planned"]
        if verification.differing_copies:
            named = ", ".join(verification.differing_copies[:_MAX_LISTED])
            lines.append(
                f"FAILED: replicas differ in {plural(len(verification.differing_copies), 'variable')}: {named}"
            )
        elif not verification.passed:
            named = ", ".join(verification.unexplained[:_MAX_LISTED])
            lines.append(
                f"FAILED: relative differences beyond {verification.tolerance:.0e} that the control does not explain"
                + (f": {named}" if named else "")
            )
    if count := len(verification.explained):
        named = ", ".join(verification.explained[:_MAX_LISTED])
        more = f" and {count - _MAX_LISTED:,} more" if count > _MAX_LISTED else ""
        lines.append(f"beyond {verification.tolerance:.0e}, as in the control run: {named}{more}")
    if verification.note:
        lines.append(verification.note)
    return [*lines, f"measured on {_ran_on(verification.ran_on)}{_steps(verification, training)}"]


def _ran_on(ran_on: dict[str, str]) -> str:
    return ", ".join(
        short_name(actual) if planned == actual else f"{short_name(actual)} standing in for {short_name(planned)}"
        for planned, actual in sorted(ran_on.items())
    )


def _rows(verification: Verification, training: bool) -> list[tuple[str, str, str]]:
    rows = [("outputs", _difference(verification.outputs_max_abs_diff), _difference(verification.outputs_max_rel_diff))]
    if training:
        rows += [
            ("loss", _difference(verification.loss_max_abs_diff), "-"),
            (
                "gradients",
                _difference(verification.gradients_max_abs_diff),
                _difference(verification.gradients_max_rel_diff),
            ),
            (
                f"weights after {plural(verification.num_steps, 'step')}",
                _difference(verification.weights_max_abs_diff),
                _difference(verification.weights_max_rel_diff),
            ),
        ]
    control = "control: the unplaced model against itself"
    return [
        *rows,
        (control, _difference(verification.control_max_abs_diff), _difference(verification.control_max_rel_diff)),
    ]


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
