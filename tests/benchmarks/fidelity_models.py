"""The models of the benchmarks of predictions: each a compiled Keras model, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.benchmarks.keras_models import (
    Built,
    application,
    bidirectional,
    convolutions,
    encoder,
    gated_decoder,
    lstm,
    mixed_float16,
    perceptron,
    two_towers,
    unet,
    vgg,
    vision_transformer,
    workload,
)

MODELS: dict[str, Callable[[], Built]] = {
    "mlp-1024": partial(perceptron, 1024, 3, 256),
    "mlp-384-deep": partial(perceptron, 384, 12, 512),
    "dense-512": partial(workload, kind="dense", depth=8, width=512, batch_size=1024),
    "vgg": partial(vgg, 48, 32),
    "resnet50": partial(application, "ResNet50", 64, 16),
    "densenet121": partial(application, "DenseNet121", 64, 8),
    "mobilenet-v2": partial(application, "MobileNetV2", 96, 16),
    "efficientnet-b0": partial(application, "EfficientNetB0", 64, 16),
    "convnext-tiny": partial(application, "ConvNeXtTiny", 64, 4),
    "xception": partial(application, "Xception", 71, 8),
    "encoder": partial(encoder, 3, 192, 64, 16),
    "decoder-256": partial(workload, kind="decoder", depth=3, width=256, batch_size=8, length=64, vocabulary=512),
    "decoder-128": partial(workload, kind="decoder", depth=4, width=128, batch_size=16, length=96, vocabulary=1000),
    "lstm": partial(lstm, 128, 32, 32),
    "mlp-384-mixed": partial(mixed_float16, partial(perceptron, 384, 4, 256)),
    "mlp-128": partial(perceptron, 128, 1, 64),
    "two-towers": partial(two_towers, 256, 4, 256),
    "u-net": partial(unet, 64, 4),
    "vision-transformer": partial(vision_transformer, 4, 128, 32, 8),
    "gated-decoder": partial(gated_decoder, 4, 256, 64, 8),
    "bidirectional-lstm": partial(bidirectional, "LSTM", 64, 32, 32),
    "bidirectional-gru": partial(bidirectional, "GRU", 64, 32, 32),
    # Small also where a core is slow: a step takes less than 30 ms.
    "mlp-256-deep": partial(perceptron, 256, 6, 128),
    "convolutions": partial(convolutions, 32),
    "small-vision-transformer": partial(vision_transformer, 2, 64, 32, 8, dropout=0.0),
    "small-bidirectional-gru": partial(bidirectional, "GRU", 32, 16, 32),
}
