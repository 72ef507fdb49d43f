"""The classic two-layer perceptron on 784 inputs, split over two devices in one call.

partition examples/mlp_784.py --devices CPU:0,CPU:1 --batch-size 64
python examples/mlp_784.py --devices GPU:0,GPU:1
"""

import argparse

import digits
import keras
from keras import layers

import partitioner


def build_model():
    model = keras.Sequential(
        [
            keras.Input((784,), name="pixels"),
            layers.Dense(128, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="mlp_784",
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description="Train a perceptron that is split over devices.")
    parser.add_argument("--devices", default="CPU:0,CPU:1", help="comma list (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    devices = options.devices.split(",")

    partitioner.set_up_devices(devices)  # before TensorFlow starts: logical CPU devices are made here
    keras.utils.set_random_seed(0)
    (x_train, y_train), (x_test, y_test) = digits.load(28, 28, flat=True)
    model = build_model()

    # A model as small as this is fastest on one device: without `strategy` the planner would say so.
    placed = partitioner.auto_place(model, devices=devices, batch_size=64, strategy="layer-split")
    check = partitioner.verify(model, placed)
    print(f"misplaced ops {len(check.misplaced_ops)}, gradients off by {check.gradients_max_abs_diff:.1e}")

    placed.fit(x_train, y_train, batch_size=64, epochs=options.epochs, verbose=2)
    loss, accuracy = placed.evaluate(x_test, y_test, batch_size=64, verbose=0)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
