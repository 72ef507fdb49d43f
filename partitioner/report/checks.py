"""What verification showed, in words: where ops ran, how far the numbers are from the unplaced model's."""

from __future__ import annotations

from partitioner.ir.devices import short_name
from partitioner.ir.plan import Verification
from partitioner.ir.units import plural

_MAX_LISTED = 8


def verification_lines(
    found: Verification, *, training: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Sentences, and the rows of a table: what was compared, absolute difference, relative difference.

    A relative difference is the norm of a tensor's difference over its norm, at worst; `-` where none was taken.
    """
    return tuple(_sentences(found, training)), tuple(_rows(found, training))


def _sentences(found: Verification, training: bool) -> list[str]:
    checked = plural(found.num_ops_checked, "op")
    if found.misplaced_ops:
        named = ", ".join(found.misplaced_ops[:_MAX_LISTED])
        more = len(found.misplaced_ops) - _MAX_LISTED
        lines = [
            f"FAILED: {len(found.misplaced_ops):,} of {checked} ran on another device than planned",
            f"misplaced: {named}{f' and {more:,} more' if more > 0 else ''}",
        ]
    else:
        lines = [f"every one of {checked} ran where it was planned"]
        if found.differing_copies:
            named = ", ".join(found.differing_copies[:_MAX_LISTED])
            lines.append(f"FAILED: replicas differ in {plural(len(found.differing_copies), 'variable')}: {named}")
        elif not found.passed:
            lines.append(f"FAILED: relative differences beyond {found.tolerance:.0e} that the control does not explain")
    steps = f", {plural(found.num_steps, 'optimizer step')}" if training else ""
    return [*lines, f"measured on {_ran_on(found.ran_on)}{steps}"]


def _ran_on(ran_on: dict[str, str]) -> str:
    return ", ".join(
        short_name(actual) if planned == actual else f"{short_name(actual)} standing in for {short_name(planned)}"
        for planned, actual in sorted(ran_on.items())
    )


def _rows(found: Verification, training: bool) -> list[tuple[str, str, str]]:
    rows = [("outputs", _difference(found.outputs_max_abs_diff), _difference(found.outputs_max_rel_diff))]
    if training:
        rows += [
            ("loss", _difference(found.loss_max_abs_diff), "-"),
            (
                "gradients",
                _difference(found.gradients_max_abs_diff),
                _difference(found.gradients_max_rel_diff),
            ),
            (
                f"weights after {plural(found.num_steps, 'step')}",
                _difference(found.weights_max_abs_diff),
                _difference(found.weights_max_rel_diff),
            ),
        ]
    control = "control: the unplaced model against itself"
    return [
        *rows,
        (control, _difference(found.control_max_abs_diff), _difference(found.control_max_rel_diff)),
    ]


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
