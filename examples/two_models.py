"""Model A on one device feeds model B on another; together they train exactly like the unplaced pair.

partition examples/two_models.py --devices CPU:0,CPU:1 --batch-size 64
python examples/two_models.py --devices GPU:0,GPU:1
"""

import argparse

import digits
import keras
import numpy as np
from keras import layers

import partitioner


def build_encoder():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), name="image"),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(32, 3, strides=2, activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dense(32, activation="relu", name="code"),
        ],
        name="encoder",
    )


def build_classifier():
    return keras.Sequential(
        [
            keras.Input((32,), name="code"),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="classifier",
    )


def build_model():
    image = keras.Input((28, 28, 1), name="image")
    model = keras.Model(image, build_classifier()(build_encoder()(image)), name="two_models")
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(model, data, epochs):
    """The training history: one list of numbers per metric."""
    keras.utils.set_random_seed(1)  # the same order of examples for everyone
    return model.fit(*data, batch_size=64, epochs=epochs, verbose=2).history


def main():
    parser = argparse.ArgumentParser(description="Train two models, one per device, as one.")
    parser.add_argument("--devices", default="CPU:0,CPU:1", help="comma list of two (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    first, second = options.devices.split(",")

    partitioner.set_up_devices([first, second])  # before TensorFlow starts: logical CPU devices are made here
    train, test = digits.load(28, 28)
    keras.utils.set_random_seed(0)
    model = build_model()
    unplaced = build_model()
    unplaced.set_weights(model.get_weights())

    plan = partitioner.plan(
        model,
        devices=[first, second],
        batch_size=64,
        strategy="layer-split",
        # The layers of a model inside: model/layer.
        constraints=partitioner.Constraints(pins={"encoder/.*": first, "classifier/.*": second}),
    )
    print(plan.to_text())
    plan.save("two_models.plan.json")
    plan.to_dot("two_models.dot")  # draw it: dot -Tsvg two_models.dot > two_models.svg
    placed = partitioner.place(model, plan)

    print("\nplaced on two devices")
    history = fit(placed, train, options.epochs)
    print("\nunplaced")
    reference = fit(unplaced, train, options.epochs)

    print()
    for metric, values in reference.items():
        difference = np.abs(np.subtract(history[metric], values)).max()
        print(f"{metric}: largest difference between the two histories {difference:.1e}")
    loss, accuracy = placed.evaluate(*test, batch_size=64, verbose=0)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
