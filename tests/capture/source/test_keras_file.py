"""Code within a `.keras` file is found by what holds it, wherever it lies; other files hold none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import keras
from keras import layers

from partitioner.capture.source.keras_file import holders_of_code


def test_each_holder_of_code_is_named_once(tmp_path: Path) -> None:
    inner = keras.Sequential(
        [layers.Lambda(lambda x: x + 1, name="deep"), layers.Activation("relu"), layers.Lambda(keras.ops.abs)]
    )
    x = keras.Input((3,))
    keras.Model(x, layers.Lambda(lambda v: v * 2, name="shallow")(inner(x))).save(tmp_path / "net.keras")
    assert holders_of_code(tmp_path / "net.keras") == ["deep", "shallow"]


def test_what_cannot_be_read_holds_none(tmp_path: Path) -> None:
    keras.Sequential([keras.Input((3,)), layers.Dense(2)]).save(tmp_path / "plain.keras")
    (tmp_path / "no_zip.keras").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "deep.keras", "w") as archive:
        archive.writestr("config.json", "[" * 100_000)
    for name in ("plain", "no_zip", "deep", "missing"):
        assert holders_of_code(tmp_path / f"{name}.keras") == []
