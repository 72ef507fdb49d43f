"""Ops that compute each entry from the entries at its place, with broadcasting as in NumPy."""

from __future__ import annotations

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes
from partitioner.capture.batch_axis.linear import Degree, added, mapped, multiplied
from partitioner.capture.batch_axis.site import Site, rule

_SAME = "Identity IdentityN StopGradient PreventGradient Snapshot CheckNumerics CheckNumericsV2 Neg Real Imag Conj"
_SUMS = "Add AddV2 Sub AddN BiasAddV1"
_MAPS = """
Abs Acos Acosh Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e Betainc Bitcast
BitwiseAnd BitwiseOr BitwiseXor Ceil ClipByValue Complex ComplexAbs Cos Cosh Digamma Elu Equal Erf Erfc Erfinv Exp Expm1
Floor FloorDiv FloorMod GeluGrad Greater GreaterEqual Igamma Igammac Inv Invert IsFinite IsInf IsNan LeakyRelu LeftShift
Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Ndtri NextAfter NotEqual Polygamma
Pow Reciprocal Relu Relu6 RightShift Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square
SquaredDifference Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
AsString RegexFullMatch RegexReplace StaticRegexReplace StringJoin StringLength StringLower StringStrip
StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Substr
FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars QuantizeAndDequantizeV2 QuantizeAndDequantizeV4 Bucketize
SigmoidGrad TanhGrad ReluGrad SqrtGrad RsqrtGrad
"""


@rule(*_SAME.split())
def same(site: Site) -> Flow | list[Flow]:
    """Each output has the values of its input, or a multiple of them."""
    return list(site.flows) if site.op.type == "IdentityN" else site.flows[0]


@rule("EnsureShape")
def ensure(site: Site) -> Flow:
    """The same, if it has a given shape."""
    value = site.flows[0]
    wanted = site.attr("shape")
    if isinstance(value, Apart) and not wanted.unknown_rank and wanted.dim[value.axis].size >= 0:
        raise Mixes(grouped=f"it takes {wanted.dim[value.axis].size} rows only")
    return value


@rule("Cast")
def cast(site: Site) -> Flow:
    """A number of another type: the same number, unless it is rounded or compared with 0."""
    source, target = site.op.inputs[0].dtype, site.op.outputs[0].dtype
    is_linear = source.size <= 16 and not source.is_bool and (target.is_floating or target.is_complex)
    is_linear = is_linear or (source.is_integer and target.is_integer)
    return site.flows[0] if is_linear else broadcast(site, mapped(site.flows, site.origin))


@rule(*_SUMS.split())
def add(site: Site) -> Flow:
    """A sum of tensors."""
    return broadcast(site, added(site.flows, site.origin))


@rule("BiasAdd")
def add_bias(site: Site) -> Flow:
    """Of a vector along the channels, which have no rows."""
    value = site.flows[0]
    channels = 1 if site.attr("data_format") == b"NCHW" else site.rank(0) - 1
    if (isinstance(value, Apart) and value.axis == channels) or isinstance(site.flows[1], Apart):
        raise Mixes
    return added(site.flows, site.origin).on(value if isinstance(value, Apart) else None)


@rule("Mul", "MulNoNan")
def multiply(site: Site) -> Flow:
    """A product of tensors."""
    return broadcast(site, multiplied(site.flows, site.origin))


@rule("RealDiv", "Div", "DivNoNan")
def divide(site: Site) -> Flow:
    """A quotient of tensors."""
    return broadcast(site, multiplied(site.flows, site.origin, inverse=(1,)))


@rule("Select", "SelectV2")
def select(site: Site) -> Flow:
    """One of two values, by a condition: each row has its share of the one or the other."""
    condition = mapped(site.flows[:1], site.origin)
    chosen = added(site.flows[1:], site.origin)
    if condition.power is None or (condition.has_rows and (chosen.is_total or chosen.power)):
        raise Mixes(condition.origin or chosen.origin)
    if condition.has_rows and not chosen.has_rows:
        chosen = Degree(0, None, has_rows=True)
    return broadcast(site, chosen)


@rule(*_MAPS.split())
def apply(site: Site) -> Flow:
    """Any function of the entries."""
    return broadcast(site, mapped(site.flows, site.origin))


@rule("ZerosLike", "OnesLike")
def like(site: Site) -> Flow:
    """A constant with the shape of the input."""
    value = site.flows[0]
    return broadcast(site, Degree(0, None, has_rows=isinstance(value, Apart)))


def broadcast(site: Site, result: Degree) -> Flow:
    """The result with the rows where the inputs have them.

    Raises:
        Mixes: Rows of two inputs meet other axes, or constants have as many entries as there are rows.
    """
    if not result.has_rows:
        return result.on(None)
    out = max(site.rank(index) for index in range(len(site.flows)))
    if site.op.type == "Select" and site.rank(0) == 1 and out > 1:
        out_ranks = [out, *(site.rank(index) for index in range(1, len(site.flows)))]  # a value for each first index
    else:
        out_ranks = [site.rank(index) for index in range(len(site.flows))]
    layouts = set()
    for flow, rank in zip(site.flows, out_ranks, strict=True):
        if isinstance(flow, Apart):
            layouts.add((flow.axis + out - rank, flow.major, flow.minor))
    if len(layouts) != 1:
        raise Mixes
    axis, major, minor = layouts.pop()
    for index, (flow, rank) in enumerate(zip(site.flows, out_ranks, strict=True)):
        own = axis - (out - rank)
        if not isinstance(flow, Apart) and own >= 0 and site.rank(index) == rank and site.shape(index)[own].count != 1:
            raise Mixes
    return result.on(Apart(axis, major, minor))
