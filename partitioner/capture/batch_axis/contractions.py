"""Products of tensors: each axis has a label, and labels that the result lacks are summed over."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Total
from partitioner.capture.batch_axis.linear import multiplied
from partitioner.capture.batch_axis.site import Site, rule
from partitioner.capture.batch_axis.sizes import Size


@rule("MatMul")
def matrix_product(site: Site) -> Flow:
    """Of two matrices, each of which may be transposed."""
    first = "ki" if site.attr("transpose_a") else "ik"
    second = "jk" if site.attr("transpose_b") else "kj"
    return contracted(site, [first, second], "ij")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def matrix_products(site: Site) -> Flow:
    """Of matrices at the same place of the leading axes, which are broadcast."""
    leading = max(site.rank(0), site.rank(1)) - 2
    first = "ki" if site.attr("adj_x") else "ik"
    second = "jk" if site.attr("adj_y") else "kj"
    labels = [_leading(site, index, leading) + last for index, last in enumerate((first, second))]
    return contracted(site, labels, _leading_labels(leading) + "ij")


@rule("Einsum")
def einsum(site: Site) -> Flow:
    """By its equation; an ellipsis stands for leading axes."""
    inputs, _, output = site.attr("equation").decode().replace(" ", "").partition("->")
    terms = inputs.split(",")
    hidden = [site.rank(index) - len(term.replace("...", "")) for index, term in enumerate(terms)]
    most = _leading_labels(max(hidden))
    labels = [term.replace("...", most[len(most) - own :]) for term, own in zip(terms, hidden, strict=True)]
    return contracted(site, labels, output.replace("...", most))


def _leading_labels(count: int) -> str:
    return "".join(chr(0x3B1 + index) for index in range(count))  # Greek letters, which no equation has


def _leading(site: Site, index: int, count: int) -> str:
    return _leading_labels(count)[count - (site.rank(index) - 2) :]


def contracted(site: Site, labels: Sequence[str], output: str) -> Flow:
    """A product with these labels of axes.

    Raises:
        Mixes: Rows of two inputs have different labels (each row meets all others), or a label is repeated.
    """
    degree = multiplied(site.flows, site.origin)
    if not degree.has_rows:
        return degree.on(None)
    marked = {
        (term[flow.axis], flow.major, flow.minor)
        for term, flow in zip(labels, site.flows, strict=True)
        if isinstance(flow, Apart)
    }
    if len(marked) != 1:
        raise Mixes
    label, major, minor = marked.pop()
    for index, (term, flow) in enumerate(zip(labels, site.flows, strict=True)):
        if term.count(label) > 1:
            raise Mixes
        if not isinstance(flow, Apart) and label in term and site.shape(index)[term.index(label)] != Size(1):
            raise Mixes
    if label not in output:
        power = degree.power
        if power is None:
            raise Mixes
        return Total(power, site.origin)
    return degree.on(Apart(output.index(label), major, minor))
