"""Graph networks: messages along edges, gathered and summed by node."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.benchmarks.coverage_models.registry import classifier, compiled, register

NODES = 6
EDGES = 10
WIDTH = 8


def _edges() -> np.ndarray:
    return np.random.default_rng(3).integers(0, NODES, (EDGES, 2))


class Convolution(layers.Layer):
    """Messages along the edges of one graph that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = layers.Dense(WIDTH, activation="relu"), layers.Dense(WIDTH)

    def call(self, nodes: Any) -> Any:
        """Nodes after their neighbours' messages."""
        sources, targets = np.transpose(_edges())
        messages = self.message(tf.gather(nodes, sources, axis=1))
        summed = tf.math.unsorted_segment_sum(tf.transpose(messages, (1, 0, 2)), targets, NODES)
        return self.update(tf.concat([nodes, tf.transpose(summed, (1, 0, 2))], axis=-1))

    def compute_output_shape(self, shape: Any) -> Any:
        """As the input's."""
        return (*shape[:-1], WIDTH)


@register("graph/shared-edges")
def shared_edges() -> keras.Model:
    """Features of nodes, on one graph."""
    x = inputs = keras.Input((NODES, WIDTH))
    for _ in range(2):
        x = Convolution()(x)
    return classifier(inputs, layers.GlobalAveragePooling1D()(x))


class Messages(layers.Layer):
    """Messages along edges that are inputs: rows of the batch are nodes, so that rows meet."""

    def __init__(self) -> None:
        super().__init__()
        self.message = layers.Dense(WIDTH, activation="relu")

    def call(self, nodes: Any, edges: Any) -> Any:
        """Nodes after their neighbours' messages, weighted by attention over each node's edges."""
        count = tf.shape(nodes)[0]
        sources, targets = tf.math.floormod(edges[:, 0], count), tf.math.floormod(edges[:, 1], count)
        messages = self.message(tf.gather(nodes, sources))
        scores = tf.reduce_sum(messages * tf.gather(nodes, targets), axis=-1, keepdims=True)
        scores = tf.exp(scores - tf.gather(tf.math.unsorted_segment_max(scores, targets, count), targets))
        whole = tf.math.unsorted_segment_sum(scores, targets, count)
        weights = scores / tf.gather(whole, targets)
        return nodes + tf.math.unsorted_segment_sum(weights * messages, targets, count)

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any) -> Any:
        """As the nodes'."""
        return nodes_shape


@register("graph/edges-as-inputs")
def edges_as_inputs() -> keras.Model:
    """A graph attention network over one graph, its nodes in a batch."""
    nodes = keras.Input((WIDTH,), name="nodes")
    edges = keras.Input((2,), dtype="int32", name="edges")
    x = layers.Dense(WIDTH)(nodes)
    for _ in range(2):
        x = Messages()(x, edges)
    return compiled(keras.Model({"nodes": nodes, "edges": edges}, layers.Dense(5)(x)))


@register("graph/adjacency")
def adjacency() -> keras.Model:
    """A graph per row, as a matrix; molecules."""
    nodes, matrix = keras.Input((NODES, WIDTH), name="nodes"), keras.Input((NODES, NODES), name="adjacency")
    x = nodes
    for _ in range(2):
        degrees = ops.sqrt(ops.sum(ops.abs(matrix), axis=-1, keepdims=True) + 1)
        x = layers.Dense(WIDTH, activation="relu")(ops.matmul(matrix, x) / degrees)
    return classifier([nodes, matrix], ops.max(x, axis=1))


@register("graph/point-cloud")
def point_cloud() -> keras.Model:
    """Points, their nearest neighbours, and a learned rotation (as PointNet)."""
    points = keras.Input((NODES, 3))
    x = layers.Conv1D(8, 1, activation="relu")(points)
    rotation = layers.Reshape((3, 3))(layers.Dense(9)(layers.GlobalMaxPooling1D()(x)))
    turned = layers.Dot(axes=(2, 1))([points, rotation])
    distances = ops.sum((turned[:, :, None] - turned[:, None]) ** 2, axis=-1)
    _, nearest = ops.top_k(-distances, 3)
    around = ops.take_along_axis(turned[:, None], nearest[..., None], axis=2)
    x = layers.GlobalMaxPooling1D()(ops.max(layers.Dense(8)(around), axis=2))
    return classifier(points, x)
