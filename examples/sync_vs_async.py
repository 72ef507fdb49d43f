"""Synchronous against asynchronous updates: 784-128-10 on real digits, the same samples, on 2 and 4 replicas.

Synchronous replicas update together, once a batch. Asynchronous ones each update shared parameters by their part of the
batch: as many more updates of as many fewer rows, from parameters that may be some updates old.

python examples/sync_vs_async.py --seeds 5
partition examples/sync_vs_async.py --devices CPU:0,CPU:1 --strategy mirrored --updates async --batch-size 64
"""

import argparse
import time
from pathlib import Path

import digits
import keras
import numpy as np
from keras import layers

import partitioner

BATCH = 64
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52")


def build_model():
    model = keras.Sequential(
        [
            keras.Input((784,), name="pixels"),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="sync_vs_async",
    )
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def measure(updates, replicas, seeds, epochs, data):
    """Losses by seed and epoch, accuracies by seed, samples per second, updates by staleness."""
    (x_train, y_train), (x_test, y_test) = data
    devices = [f"CPU:{index}" for index in range(replicas)]
    placed = partitioner.auto_place(
        build_model(),
        devices=devices,
        batch_size=BATCH,
        strategy="mirrored",
        microbatches=1,
        parallelism=partitioner.Parallelism(updates=updates),
    )
    placed.fit(
        x_train[:BATCH], y_train[:BATCH], batch_size=BATCH, verbose=0
    )  # trace everything before the clock starts
    before = placed.update_counts.staleness if updates == "async" else {}
    losses, accuracies, seconds = [], [], 0.0
    for seed in range(seeds):
        keras.utils.set_random_seed(seed)
        placed.set_weights(build_model().get_weights())
        start = time.perf_counter()
        history = placed.fit(x_train, y_train, batch_size=BATCH, epochs=epochs, verbose=0).history
        seconds += time.perf_counter() - start
        losses.append(history["loss"])
        accuracies.append(placed.evaluate(x_test, y_test, batch_size=BATCH, verbose=0)[1])
    if updates == "async":
        after = placed.update_counts.staleness
        staleness = {stale: count - before.get(stale, 0) for stale, count in after.items()}
    else:
        staleness = {0: seeds * epochs * -(-len(x_train) // BATCH)}
    return np.array(losses), np.array(accuracies), seeds * epochs * len(x_train) / seconds, staleness


def row(updates, replicas, losses, accuracies, rate, staleness):
    """A line of the table; spreads are from the worst to the best seed."""
    count = sum(staleness.values())
    mean = sum(stale * number for stale, number in staleness.items()) / count
    last = losses[:, -1]
    return (
        f"{updates:>6} {replicas:8} {rate:9,.0f} {count / len(losses):8.0f} {mean:6.2f} {max(staleness):4} "
        f"{last.mean():7.4f} ({last.min():.4f}-{last.max():.4f}) "
        f"{accuracies.mean():6.1%} ({accuracies.min():.1%}-{accuracies.max():.1%})"
    )


def picture(curves, width=640, height=400, border=50):
    """An SVG of the loss over epochs: a line for the mean of the seeds, and between the least and the most an area."""
    epochs = max(losses.shape[1] for losses in curves.values())
    top = max(losses.max() for losses in curves.values())

    def point(epoch, loss):
        x = border + (width - 2 * border) * epoch / max(epochs - 1, 1)
        return f"{x:.1f},{height - border - (height - 2 * border) * loss / top:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<polyline points="{point(0, top)} {point(0, 0)} {point(epochs - 1, 0)}" fill="none" stroke="black"/>',
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">epoch, 1 to {epochs}</text>',
        f'<text x="{border - 6}" y="{border}" text-anchor="end">{top:.2f}</text>',
        f'<text x="{border - 6}" y="{height - border}" text-anchor="end">0</text>',
        f'<text x="{border}" y="{border - 18}">training loss</text>',
    ]
    for index, (label, losses) in enumerate(curves.items()):
        lines = {of: [point(*pair) for pair in enumerate(getattr(losses, of)(axis=0))] for of in ("min", "max", "mean")}
        colour, y = COLOURS[index % len(COLOURS)], border + 18 * index
        area = " ".join([*lines["min"], *reversed(lines["max"])])
        parts += [
            f'<polygon points="{area}" fill="{colour}" fill-opacity="0.2"/>',
            f'<polyline points="{" ".join(lines["mean"])}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{width - border}" y="{y}" text-anchor="end" fill="{colour}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description="Compare synchronous and asynchronous updates.")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind, each from other weights")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--svg", type=Path, help="draw the loss curves here")
    options = parser.parse_args()

    partitioner.set_up_devices("CPU:0-3")  # before TensorFlow starts
    data = digits.load(28, 28, flat=True)
    print("                   samples/  updates  staleness  training loss            test accuracy")
    print("updates replicas    second  per run   mean  max  after the last epoch     (worst-best seed)")
    curves = {}
    for replicas in (2, 4):
        for updates in ("sync", "async"):
            found = measure(updates, replicas, options.seeds, options.epochs, data)
            curves[f"{updates}, {replicas} replicas"] = found[0]
            print(row(updates, replicas, *found), flush=True)
    if options.svg:
        options.svg.write_text(picture(curves))


if __name__ == "__main__":
    main()
