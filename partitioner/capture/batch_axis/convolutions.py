"""Ops on images and sequences whose first axis is a batch: convolutions, poolings, resizing, normalisation."""

from __future__ import annotations

from dataclasses import replace

from partitioner.capture.batch_axis.flow import Apart, Flow, Mixes, Uniform
from partitioner.capture.batch_axis.indexing import first_axis
from partitioner.capture.batch_axis.linear import mapped
from partitioner.capture.batch_axis.site import Site, rule
from partitioner.capture.batch_axis.sizes import product

_LINEAR = """
Conv2D Conv3D DepthwiseConv2dNative Conv AvgPool AvgPool3D ResizeBilinear ResizeBicubic ResizeNearestNeighbor ResizeArea
ScaleAndTranslate DepthToSpace SpaceToDepth ExtractImagePatches ExtractVolumePatches
"""
_MAPS = """
MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax Dilation2D LRN AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV
HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3 FractionalMaxPool Multinomial StatelessMultinomial
"""


@rule(*_LINEAR.split(), *_MAPS.split())
def image(site: Site) -> Flow:
    """Each first index of the first input by itself."""
    value = site.flows[0]
    others = range(1, len(site.flows))
    if site.op.type.startswith("ImageProjective") and any(isinstance(flow, Apart) for flow in site.rest):
        return first_axis(site, inputs=(0, 1))
    if not site.is_constant(*others):
        raise Mixes
    if not isinstance(value, Apart):
        return (
            site.only()
            if isinstance(value, Uniform) or site.op.type in _LINEAR.split()
            else mapped([value], site.origin).on(None)
        )
    if value.axis != 0:
        raise Mixes
    if site.op.type in _MAPS.split():
        mapped([value], site.origin)
    if site.op.type == "MaxPoolWithArgmax" and site.attr("include_batch_in_index"):
        raise Mixes
    return value


@rule("Conv2DBackpropInput", "Conv2DBackpropInputV2", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def transposed_convolution(site: Site) -> Flow:
    """Each image of the last input by itself; the first one is the shape of the result."""
    value = site.flows[2]
    if not isinstance(value, Apart):
        return site.only()
    if value.axis != 0 or not site.is_constant(1) or site.numbers(0).flat[0] != value.rows:
        raise Mixes
    return value


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def normalise(site: Site) -> list[Flow]:
    """By given statistics each image by itself, by those of the batch all together; behind it, the statistics."""
    value = site.flows[0]
    if isinstance(value, Apart) and site.attr("is_training"):
        raise Mixes
    return [image(site), *(Uniform() for _ in site.op.outputs[1:])]


@rule("SpaceToBatchND", "SpaceToBatch")
def space_to_batch(site: Site) -> Flow:
    """Places of a block become images: all images come once for each place."""
    value, size = _blocks(site)
    return replace(value, major=value.major * size) if isinstance(value, Apart) else value


@rule("BatchToSpaceND", "BatchToSpace")
def batch_to_space(site: Site) -> Flow:
    """The inverse."""
    value, size = _blocks(site)
    if not isinstance(value, Apart):
        return value
    if value.major % size:
        raise Mixes
    return replace(value, major=value.major // size)


def _blocks(site: Site) -> tuple[Flow, int]:
    value = site.flows[0]
    if not isinstance(value, Apart):
        return site.only(), 1
    if value.axis != 0 or not site.op.type.endswith("ND"):
        raise Mixes
    return value, int(product(site.numbers(1).flat).count)
