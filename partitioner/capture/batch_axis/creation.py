"""Ops that make tensors of a given shape: constants, ranges and random numbers."""

from __future__ import annotations

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Uniform
from partitioner.capture.batch_axis.linear import mapped
from partitioner.capture.batch_axis.pieces import rows_of_shape
from partitioner.capture.batch_axis.site import Site, rule

_DRAWS = """
RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal StatelessRandomUniform StatelessRandomUniformV2
StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
StatelessRandomNormal StatelessRandomNormalV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 StatefulUniform
StatefulUniformInt StatefulUniformFullInt StatefulStandardNormalV2 StatefulTruncatedNormal Empty
"""


@rule(*_DRAWS.split())
def draw(site: Site) -> Flow:
    """Random numbers of a shape, for each row its own."""
    index = 2 if site.op.type.startswith("Stateful") else 0
    return Uniform() if site.is_constant(index) else rows_of_shape(list(site.numbers(index).flat), Uniform())


@rule("StatelessRandomBinomial", "StatelessRandomGammaV2", "StatelessRandomGammaV3", "RandomGamma", "RandomPoissonV2")
def draw_by_parameters(site: Site) -> Flow:
    """Random numbers of a shape, whose last axes are those of their parameters."""
    if all(site.is_constant(index) for index in range(len(site.flows))):
        return Uniform()
    raise Mixes


@rule("RandomShuffle")
def shuffle(site: Site) -> Flow:
    """Another order along the first axis."""
    value = site.flows[0]
    if isinstance(value, Apart) and value.axis == 0:
        raise Mixes
    return value


@rule("Fill")
def fill(site: Site) -> Flow:
    """One value, given as a scalar."""
    if site.is_constant(0):
        return (
            site.flows[1]
            if not isinstance(site.flows[1], Uniform)
            else Uniform(site.flows[1].power, None, site.flows[1].origin)
        )
    return rows_of_shape(list(site.numbers(0).flat), site.flows[1])


@rule("Range", "LinSpace")
def count(site: Site) -> Flow:
    """Numbers one after the other."""
    if any(not isinstance(flow, Uniform) for flow in site.flows):
        raise Mixes
    return mapped(site.flows, site.origin).on(None)


@rule("MatrixDiagV2", "MatrixDiag")
def diagonal(site: Site) -> Flow:
    """A matrix for each vector along the last axis."""
    value = site.flows[0]
    if isinstance(value, Apart) and value.axis == site.rank(0) - 1:
        raise Mixes
    return value


@rule("Where")
def places(site: Site) -> Flow:
    """As many as there are: no part of it belongs to a row."""
    if site.is_constant(0):
        return Uniform()
    raise Mixes


@rule("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg", "StatelessRandomGetAlg")
def seed(site: Site) -> Flow:
    """Of a seed."""
    return site.only()
