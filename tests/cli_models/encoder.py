"""A Transformer encoder of four layers, read from tokens, with dropout."""

import keras
from keras import layers, ops

LENGTH, WIDTH, HEADS, TOKENS = 16, 32, 4, 50


class Positions(layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight(shape=(LENGTH, WIDTH), initializer="uniform", name="table")

    def call(self, x):
        return x + self.table[: ops.shape(x)[1]]


def encoder_layer(x, index):
    with keras.name_scope(f"layer{index}"):
        mixed = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"attention{index}")(x, x)
        mixed = layers.Dropout(0.1, seed=index, name=f"dropout{index}")(mixed)
        x = layers.LayerNormalization(name=f"norm{index}a")(layers.Add(name=f"add{index}a")([x, mixed]))
        hidden = layers.Dense(4 * WIDTH, activation="gelu", name=f"wide{index}")(x)
        hidden = layers.Dense(WIDTH, name=f"narrow{index}")(hidden)
        return layers.LayerNormalization(name=f"norm{index}b")(layers.Add(name=f"add{index}b")([x, hidden]))


def build_model():
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    x = Positions(name="positions")(layers.Embedding(TOKENS, WIDTH, name="embedding")(tokens))
    for index in range(4):
        x = encoder_layer(x, index)
    scores = layers.Dense(TOKENS, activation="softmax", name="scores")(x)
    model = keras.Model(tokens, scores, name="encoder")
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model
