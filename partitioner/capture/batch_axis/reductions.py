"""Ops along some axes: sums, means and maxima over them; softmax and running sums, which keep them."""

from __future__ import annotations

from dataclasses import replace

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total, Uniform
from partitioner.capture.batch_axis.linear import mapped
from partitioner.capture.batch_axis.site import Site, plain, rule


@rule("Sum", "Mean")
def add_up(site: Site) -> Flow:
    """A sum over the rows is a total; a mean divides it by their number."""
    value, axes = _reduced(site)
    if isinstance(value, Apart) and value.axis in axes:
        return Total(value.power - (site.op.type == "Mean"), site.origin)
    return _without(site, value, axes)


@rule("Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def reduce(site: Site) -> Flow:
    """Another function of the entries along axes."""
    value, axes = _reduced(site)
    if isinstance(value, Apart) and value.axis in axes:
        raise Mixes
    mapped((value,), site.origin)
    return _without(site, value, axes)


@rule("ArgMax", "ArgMin")
def place_of_largest(site: Site) -> Flow:
    """An index along one axis, which goes."""
    value, axes = _reduced(site)
    if isinstance(value, Apart) and value.axis in axes:
        raise Mixes
    mapped((value,), site.origin)
    return (
        replace(value, axis=value.axis - sum(axis < value.axis for axis in axes)) if isinstance(value, Apart) else value
    )


@rule("L2Loss")
def half_of_squares(site: Site) -> Flow:
    """The sum of all squares, halved."""
    return Total(0, site.origin) if isinstance(plain(site.flows[0]), Apart) else Uniform()


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp")
def run_along(site: Site) -> Flow:
    """A running sum or product along one axis."""
    value, axes = _reduced(site)
    if isinstance(value, Apart) and value.axis in axes:
        raise Mixes
    if site.op.type != "Cumsum":
        mapped((value,), site.origin)
    return value


_LAST = """
Softmax LogSoftmax TopK TopKV2 FFT IFFT RFFT IRFFT ApproxTopK
"""
_LAST_TWO = """
FFT2D IFFT2D RFFT2D IRFFT2D Cholesky MatrixInverse MatrixDeterminant LogMatrixDeterminant Qr Svd SelfAdjointEigV2
MatrixSetDiagV3 MatrixBandPart MatrixDiagPartV3 MatrixSolve MatrixTriangularSolve MatrixExponential
"""


@rule(*_LAST.split(), *_LAST_TWO.split(), "FFT3D", "IFFT3D", "MatrixDiagV3")
def along_last_axes(site: Site) -> Flow:
    """Any function of what lies along the last axes; those before are left as they are."""
    kind = site.op.type
    num_axes = 2 if kind in _LAST_TWO.split() else 3 if "3D" in kind else 1
    value = mapped(site.flows, site.origin).on(_shared(site))
    if isinstance(value, Apart) and value.axis >= site.rank(0) - num_axes:
        raise Mixes
    return value


def _shared(site: Site) -> Apart | None:
    """The layout of all inputs that have rows; inputs without rows must not depend on the batch."""
    layouts = set(site.apart)
    if len(layouts) > 1 or (
        layouts and not all(isinstance(f, Apart) or site.is_constant(i) for i, f in enumerate(site.flows))
    ):
        raise Mixes
    return layouts.pop() if layouts else None


def _reduced(site: Site) -> tuple[Flow, list[int]]:
    if isinstance(site.flows[0], Uniform):
        return site.flows[0], []
    return site.flows[0], site.axes(1)


def _without(site: Site, value: Flow, axes: list[int]) -> Flow:
    if not isinstance(value, Apart):
        return replace(value, numbers=None) if isinstance(value, Uniform) else value
    gone = 0 if site.attr("keep_dims") else sum(axis < value.axis for axis in set(axes))
    return replace(value, axis=value.axis - gone)
