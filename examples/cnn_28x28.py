"""A CNN split between its layers; `--sweep` shows what more stages, larger batches and mixed precision bring.

partition examples/cnn_28x28.py --devices CPU:0,CPU:1 --batch-size 64
python examples/cnn_28x28.py --devices GPU:0,GPU:1
python examples/cnn_28x28.py --sweep --devices CPU:0,CPU:1,CPU:2,CPU:3
"""

import argparse
import math
import time

import digits
import keras
from keras import layers

import partitioner


def build_model(precision="float32"):
    keras.mixed_precision.set_dtype_policy(precision)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1), name="image"),
            layers.Conv2D(32, 3, activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(64, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Conv2D(64, 3, activation="relu", name="conv3"),
            layers.Flatten(name="flatten"),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", dtype="float32", name="scores"),
        ],
        name="cnn_28x28",
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def run(devices, epochs, batch_size=64, precision="float32", verbose=0):
    """Plan, place, fit and evaluate: the plan, measured seconds per step, test loss and test accuracy."""
    train, test = digits.load(28, 28)
    keras.utils.set_random_seed(0)
    model = build_model(precision)
    strategy = "layer-split" if len(devices) > 1 else "single"
    plan = partitioner.plan(model, devices=devices, batch_size=batch_size, strategy=strategy)
    if verbose:
        print(plan.to_text())
    placed = partitioner.place(model, plan)
    placed.fit(*train, batch_size=batch_size, epochs=1, verbose=verbose)  # this epoch also traces
    start = time.perf_counter()
    placed.fit(*train, batch_size=batch_size, epochs=epochs, initial_epoch=1, verbose=verbose)
    num_steps = (epochs - 1) * math.ceil(len(train[0]) / batch_size)
    step_seconds = (time.perf_counter() - start) / num_steps
    loss, accuracy = placed.evaluate(*test, batch_size=batch_size, verbose=0)
    return plan, step_seconds, loss, accuracy


def sweep(devices, epochs):
    """One line per setting; each group varies one thing and keeps 2 stages, 64 rows and float32 else."""
    settings = [{"devices": devices[:n]} for n in (1, 2, 3, 4) if n <= len(devices)]
    settings += [{"devices": devices[:2], "batch_size": size} for size in (32, 128, 256)]
    settings += [{"devices": devices[:2], "precision": p} for p in ("mixed_bfloat16", "mixed_float16")]
    print("                              step ms   step ms   rows      test  peak MiB of each device")
    print("stages  batch  precision    predicted  measured  per s  accuracy  predicted")
    for setting in settings:
        batch_size, precision = setting.get("batch_size", 64), setting.get("precision", "float32")
        plan, seconds, _, accuracy = run(epochs=epochs, **setting)
        predicted_ms = plan.predicted.step_seconds * 1e3
        peaks = " + ".join(f"{size / 2**20:.1f}" for _, size in sorted(plan.predicted.peak_bytes.items()))
        print(
            f"{len(setting['devices']):6}  {batch_size:5}  {precision:14}{predicted_ms:7.2f}"
            f"  {seconds * 1e3:8.2f}  {batch_size / seconds:5.0f}  {accuracy:8.1%}  {peaks}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description="Train a CNN split between its layers.")
    parser.add_argument("--devices", help="comma list (default: two CPU devices, for the sweep four)")
    parser.add_argument("--epochs", type=int, default=5, help="2 or more: the first one is not timed")
    parser.add_argument("--sweep", action="store_true", help="compare stages, batch sizes and precisions")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs must be 2 or more: the first one is not timed")
    cpus = "CPU:0,CPU:1,CPU:2,CPU:3" if options.sweep else "CPU:0,CPU:1"
    devices = (options.devices or cpus).split(",")

    partitioner.set_up_devices(devices)  # before TensorFlow starts: logical CPU devices are made here
    if options.sweep:
        sweep(devices, options.epochs)
        return
    _, step_seconds, loss, accuracy = run(devices, options.epochs, verbose=2)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}, {step_seconds * 1e3:.1f} ms per step (measured)")


if __name__ == "__main__":
    main()
