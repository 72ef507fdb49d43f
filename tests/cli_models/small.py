"""Two dense layers: 4 * 8 + 8 and 8 * 3 + 3 parameters (67); 32 rows of 8 floats (1 KiB) between them."""

import keras
from keras import layers


def build_model(width=8):
    return keras.Sequential(
        [
            keras.Input((4,), name="x"),
            layers.Dense(width, activation="relu", name="first"),
            layers.Dense(3, name="second"),
        ],
        name="small",
    )
