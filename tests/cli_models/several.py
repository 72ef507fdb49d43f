"""Two models, and nothing that says which."""

import keras
from keras import layers

teacher = keras.Sequential([keras.Input((4,)), layers.Dense(8)])
student = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
