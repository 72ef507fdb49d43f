"""The models of the benchmark of strategies: a compiled Keras model, and a batch for it, for each name.

None has batch normalization or dropout: replicas would change their numbers, so that `auto` may not choose them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.benchmarks.keras_models import (
    VOCABULARY,
    Built,
    bidirectional,
    convolutions,
    encoder,
    gated_decoder,
    lstm,
    perceptron,
    two_towers,
    vgg,
    vision_transformer,
    workload,
)

_dense = partial(workload, kind="dense", depth=8)

MODELS: dict[str, Callable[[], Built]] = {
    # Small: a step takes less than 30 ms.
    "perceptron, few rows": partial(perceptron, 128, 1, 64),
    "perceptron, deep": partial(perceptron, 256, 6, 128),
    "convolutions, few rows": partial(convolutions, 32),
    "lstm": partial(lstm, 64, 16, 128),
    "bidirectional gru": partial(bidirectional, "GRU", 32, 16, 32),
    "vision transformer, few rows": partial(vision_transformer, 2, 64, 32, 8, dropout=0.0),
    # Larger.
    "perceptron, wide": partial(perceptron, 2048, 1, 512),
    "dense stack, many rows": partial(_dense, width=256, batch_size=4096),
    "dense stack, few rows": partial(_dense, width=1024, batch_size=64),
    "convolutions": partial(convolutions, 512),
    "vgg": partial(vgg, 32, 32),
    "two towers": partial(two_towers, 512, 3, 1024),
    "encoder": partial(encoder, 2, 128, 64, 32, dropout=0.0),
    "decoder": partial(workload, kind="decoder", depth=2, width=128, batch_size=32, length=64, vocabulary=VOCABULARY),
    "gated decoder": partial(gated_decoder, 2, 128, 64, 32),
}
