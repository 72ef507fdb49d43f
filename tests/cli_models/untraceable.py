"""A model that leaves the graph: NumPy needs values, and there are none while tracing."""

import keras
import numpy as np
from keras import layers


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8)

    def call(self, x):
        return self.first(np.asarray(x))


def build_model():
    return Net()
