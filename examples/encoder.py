"""A Transformer encoder that reads an image row by row, in stages that work on several microbatches at once.

partition 'examples/encoder.py:build_model(blocks=24)' --devices GPU:0-3 --hardware a100-80gb --microbatches 8
python examples/encoder.py --devices CPU:0,CPU:1
"""

import argparse

import digits
import keras
from keras import layers

import partitioner


def build_model(blocks=2, width=256, heads=8):
    x = image = keras.Input((28, 28), name="image")
    x = layers.Dense(width, name="rows")(x)
    for number in range(blocks):
        name = f"block_{number}"
        attended = layers.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")(x, x)
        x = layers.LayerNormalization(name=f"{name}_norm_1")(layers.add([x, attended], name=f"{name}_add_1"))
        hidden = layers.Dense(4 * width, activation="gelu", name=f"{name}_up")(x)
        hidden = layers.Dense(width, name=f"{name}_down")(hidden)
        x = layers.LayerNormalization(name=f"{name}_norm_2")(layers.add([x, hidden], name=f"{name}_add_2"))
    x = layers.GlobalAveragePooling1D(name="average")(x)
    model = keras.Model(image, layers.Dense(10, activation="softmax", name="scores")(x), name="encoder")
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description="Train a Transformer encoder in stages.")
    parser.add_argument("--devices", default="CPU:0,CPU:1", help="comma list (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    devices = list(partitioner.set_up_devices(options.devices))  # before TensorFlow starts
    keras.utils.set_random_seed(0)
    (x_train, y_train), (x_test, y_test) = digits.load(28, 28)
    model = build_model(options.blocks, width=64, heads=4)

    placed = partitioner.auto_place(model, devices=devices, batch_size=64, strategy="layer-split", microbatches=4)
    plan = placed.plan
    print(f"{plan.num_stages} stages, {plan.num_microbatches} microbatches, schedule {plan.schedule}")

    placed.fit(x_train[..., 0], y_train, batch_size=64, epochs=options.epochs, verbose=2)
    loss, accuracy = placed.evaluate(x_test[..., 0], y_test, batch_size=64, verbose=0)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
