"""Equal dense layers: 4 layers of 256 x 256, after one another."""

import keras
from keras import layers


def build_model(depth=4, width=256):
    inputs = keras.Input((width,), name="x")
    x = inputs
    for index in range(depth):
        x = layers.Dense(width, activation="relu", name=f"layer_{index}")(x)
    model = keras.Model(inputs, x, name="stack")
    model.compile(optimizer="sgd", loss="mse")
    return model
