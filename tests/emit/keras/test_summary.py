"""The summary of a placed model: the device of every layer beside Keras' own figures."""

from __future__ import annotations

import inspect
import os
import stat
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import partitioner


@pytest.fixture(scope="module")
def placed() -> Any:
    """A nested encoder whose two layers are on two devices, and scores beside the second."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8,), name="image")
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")
    code = keras.layers.Dense(8, name="code")
    encoder = keras.Sequential([keras.Input((8,)), hidden, code], name="encoder")
    model = keras.Model(image, keras.layers.Dense(3, name="scores")(encoder(image)), name="nested")
    model.compile("sgd", "mse")
    pins = {"encoder/hidden": "CPU:1", "encoder/code": "CPU:2", "scores": "CPU:2"}
    return partitioner.auto_place(
        model,
        devices=["CPU:1", "CPU:2"],
        batch_size=8,
        strategy="layer-split",
        constraints=partitioner.Constraints(pins=pins),
        time_limit=5,
    )


def rows(placed: Any, **options: Any) -> list[list[str]]:
    said: list[str] = []
    placed.summary(print_fn=said.append, **options)
    lines = [line for text in said for line in text.splitlines()]
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines if line[0] in "│┃"
    ]


def test_each_layer_with_its_device(placed: Any) -> None:
    assert rows(placed) == [
        ["Layer (type)", "Output Shape", "Param #", "Device"],
        ["image (InputLayer)", "(None, 8)", "0", "CPU:1"],
        ["encoder (Sequential)", "(None, 8)", "280", "CPU:1-2"],
        ["scores (Dense)", "(None, 3)", "27", "CPU:2"],
    ]


def test_nested_layers_trainable_and_a_range(placed: Any) -> None:
    shown = rows(placed, expand_nested=True, show_trainable=True, layer_range=["enc.*", "encoder"], line_length=90)
    assert shown == [
        ["Layer (type)", "Output Shape", "Param #", "Device", "Trainable"],
        ["encoder (Sequential)", "(None, 8)", "280", "CPU:1-2", "Y"],
        ["└ hidden (Dense)", "(None, 16)", "144", "CPU:1", "Y"],
        ["└ code (Dense)", "(None, 8)", "136", "CPU:2", "Y"],
    ]


def test_it_prints_by_default_and_counts_like_keras(placed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    placed.summary(line_length=80)
    text = capsys.readouterr().out
    assert text.startswith('Model: "nested", placed\n')
    assert f" Total params: {placed.model.count_params()}" in text
    assert max(map(len, text.splitlines())) == 80


def test_arguments_are_those_of_keras(placed: Any) -> None:
    own, of_keras = (inspect.signature(kind.summary).parameters for kind in (type(placed), keras.Model))
    assert [(p.name, p.default) for p in own.values()] == [(p.name, p.default) for p in of_keras.values()]


def test_what_cannot_be_shown_is_refused(placed: Any) -> None:
    with pytest.raises(partitioner.UsageError, match=r"layer_range is \['a', 'b'\], expected the names of two layers"):
        rows(placed, layer_range=["a", "b"])
    with pytest.raises(partitioner.UsageError, match="at least 40 characters and a position for each column"):
        rows(placed, line_length=20)


def test_a_model_loaded_without_its_layers_still_has_a_summary(placed: Any, tmp_path: Path) -> None:
    placed.export(tmp_path / "saved")
    said: list[str] = []
    partitioner.load(tmp_path / "saved").summary(print_fn=said.append)
    assert "Total params" in "\n".join(said)


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_keras_plots_it(placed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras draws by a `dot` program: one of pygraphviz' Graphviz where none is installed."""
    pytest.importorskip("pygraphviz")
    program = tmp_path / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys, pygraphviz\n"
        'kind = next(a[2:] for a in sys.argv if a.startswith("-T"))\n'
        'text = open(next(a for a in sys.argv[1:] if not a.startswith("-"))).read()\n'
        'sys.stdout.buffer.write(pygraphviz.AGraph(string=text).draw(format=kind, prog="dot"))\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    keras.utils.plot_model(placed, tmp_path / "plot.png", show_shapes=True, expand_nested=True)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
