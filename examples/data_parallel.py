"""The classic towers: a copy of the model on every device, gradients averaged over all, by `mirrored`.

partition examples/data_parallel.py --devices CPU:0,CPU:1 --strategy mirrored --batch-size 64
python examples/data_parallel.py --devices GPU:0,GPU:1
"""

import argparse

import digits
import keras
from keras import layers

import partitioner


def build_model():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1), name="image"),
            layers.Conv2D(16, 3, activation="relu", name="conv_1"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Conv2D(32, 3, activation="relu", name="conv_2"),
            layers.GlobalAveragePooling2D(name="average"),
            layers.Dense(10, activation="softmax", name="scores"),
        ],
        name="data_parallel",
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description="Train a copy of a model on every device.")
    parser.add_argument("--devices", default="CPU:0,CPU:1", help="as many as there shall be towers")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    devices = list(partitioner.set_up_devices(options.devices))  # before TensorFlow starts
    (x_train, y_train), (x_test, y_test) = digits.load(28, 28)
    keras.utils.set_random_seed(0)
    placed = partitioner.auto_place(build_model(), devices=devices, batch_size=64, strategy="mirrored")
    print(placed.plan.to_text())

    placed.fit(x_train, y_train, batch_size=64, epochs=options.epochs, verbose=2)
    loss, accuracy = placed.evaluate(x_test, y_test, batch_size=64, verbose=0)
    print(f"{placed.plan.num_replicas} towers, all weights alike: {placed.replicas_identical()}")
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
