"""A small CNN over two devices: cut by hand with pins, then cut by the planner; train and predict with both.

partition examples/cnn_32x32.py --devices CPU:0,CPU:1 --batch-size 64
python examples/cnn_32x32.py --devices GPU:0,GPU:1
"""

import argparse

import digits
import keras
from keras import layers

import partitioner


def build_model():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3), name="image"),
            layers.Conv2D(32, 3, activation="relu", name="conv"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="cnn_32x32",
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(title, devices, epochs, pins=None):
    """Plan, place, train and predict; `pins` maps a regular expression over layer names to a device."""
    print(f"\n{title}")
    (x_train, y_train), (x_test, y_test) = digits.load(32, 32, channels=3)
    keras.utils.set_random_seed(0)
    model = build_model()

    constraints = partitioner.Constraints(pins=pins or {})
    plan = partitioner.plan(model, devices=devices, batch_size=64, strategy="layer-split", constraints=constraints)
    print(plan.to_text())
    placed = partitioner.place(model, plan)

    placed.fit(x_train, y_train, batch_size=64, epochs=epochs, verbose=2)
    predicted = placed.predict(x_test, batch_size=64, verbose=0).argmax(axis=1)
    print(f"{title}: {(predicted == y_test).mean():.1%} of {len(y_test)} test digits recognised")
    print(f"the first ten: predicted {predicted[:10].tolist()}")
    print(f"               true      {y_test[:10].tolist()}")


def main():
    parser = argparse.ArgumentParser(description="Train a CNN that is cut by hand, then by the planner.")
    parser.add_argument("--devices", default="CPU:0,CPU:1", help="comma list of two (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    first, second = options.devices.split(",")

    partitioner.set_up_devices([first, second])  # before TensorFlow starts: logical CPU devices are made here
    by_hand = {"conv|pool": first, "flatten|scores": second}
    train("cut by hand", [first, second], options.epochs, pins=by_hand)
    train("cut by the planner", [first, second], options.epochs)


if __name__ == "__main__":
    main()
