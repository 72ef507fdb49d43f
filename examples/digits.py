"""Handwritten digits at any size: scikit-learn's 1,797 real 8x8 scans, enlarged; nothing is downloaded."""

import numpy as np

NUM_TRAIN = 1437  # 80 %; the other 360 are for testing


def load(height, width, channels=1, flat=False):
    """`(x_train, y_train), (x_test, y_test)`: float32 images in 0..1 (rows if `flat`) and what they show."""
    from sklearn.datasets import load_digits  # here, since planning the examples does not need it

    digits = load_digits()
    scale = min(height, width) // 8
    images = (digits.images / 16).astype("float32").repeat(scale, axis=1).repeat(scale, axis=2)
    rows, columns = height - 8 * scale, width - 8 * scale
    border = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    images = np.pad(images, border)[..., None].repeat(channels, axis=-1)
    if flat:
        images = images.reshape(len(images), -1)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])
