"""The models of the overhead benchmark: a compiled Keras model, and a batch for it, for each name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.benchmarks.keras_models import (
    VOCABULARY,
    Built,
    application,
    bidirectional,
    gated_decoder,
    lstm,
    perceptron,
    two_towers,
    unet,
    vision_transformer,
    workload,
)

_decoder = partial(workload, kind="decoder", vocabulary=VOCABULARY, length=64, batch_size=8)

MODELS: dict[str, Callable[[], Built]] = {
    "mlp 784-128-10": partial(perceptron, 128, 1, 64),
    "dense": partial(workload, kind="dense", depth=8, width=512, batch_size=512),
    "two towers": partial(two_towers, 512, 4, 256),
    "resnet50 64x64": partial(application, "ResNet50", 64, 8),
    "efficientnet-b0 64x64": partial(application, "EfficientNetB0", 64, 8),
    "u-net 64x64": partial(unet, 64, 4),
    "vision transformer": partial(vision_transformer, 4, 128, 32, 8),
    "decoder, GELU, 2 x 128": partial(_decoder, depth=2, width=128),
    "decoder, GELU, 8 x 256": partial(_decoder, depth=8, width=256),
    "decoder, GELU by tanh, 4 x 256": partial(_decoder, depth=4, width=256, approximate=True),
    "decoder, gated SiLU, 4 x 256": partial(gated_decoder, 4, 256, 64, 8),
    "lstm": partial(lstm, 128, 32, 32),
    "bidirectional lstm": partial(bidirectional, "LSTM", 64, 32, 32),
    "bidirectional gru": partial(bidirectional, "GRU", 64, 32, 32),
}
