"""The error for a path that gives no trainable Keras model: what it is, and what to do with it instead."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import msgspec

from partitioner.capture.source.module_file import shown, typed
from partitioner.errors import ModelError
from partitioner.ir.plan import SCHEMA
from partitioner.spelling import command


def refusal(path: Path) -> ModelError:
    """The error for a path that is missing, or is neither a .py nor a .keras file."""
    if not path.exists():
        return _missing(path)
    what, help = _directory(path) if path.is_dir() else _file(path)
    return ModelError(f"{shown(path)} is {what}, expected a .py or .keras file", where=shown(path), help=help)


def _missing(path: Path) -> ModelError:
    folder = path.parent
    if not folder.is_dir():
        here = typed(next(parent for parent in path.parents if parent.is_dir()))
        notes, help = [f"there is no directory {shown(folder)}"], f"see what there is: ls {here}"
    else:
        files = _model_files(folder)
        close = get_close_matches(path.name, files, n=3, cutoff=0.5)
        notes = [f"{shown(folder)} holds {', '.join(close or files[:8]) or 'no .py or .keras file'}"]
        help = f"partition {typed(folder / close[0])}" if close else f"see what there is: ls {typed(folder)}"
    return ModelError(f"no such file: {shown(path)}", notes=notes, help=help)


def _directory(path: Path) -> tuple[str, str]:
    if (path / "plan.json").is_file():
        return "a partitioned model", f"load it to train or run it: partitioner.load({shown(path)!r})"
    if (path / "saved_model.pb").is_file():
        if (path.parent / "plan.json").is_file():
            return "a placed model", f"load it to train or run it: partitioner.load({shown(path.parent)!r})"
        return "a SavedModel, which has lost its layers", "save the model as Keras: model.save('model.keras')"
    files = _model_files(path)
    return "a directory", f"name a file in it: partition {typed(path / (files[0] if files else 'model.py'))}"


def _file(path: Path) -> tuple[str, str]:
    match path.suffix:
        case ".json":
            source = _planned_source(path)
            if source is not None:
                return "a plan", f"plan its model anew: partition {source}"
            return "a JSON file (a cost graph?)", "name the file that builds the model: partition model.py"
        case ".txt":
            return "a text file (a cost graph?)", "name the file that builds the model: partition model.py"
        case ".h5" | ".hdf5":
            new = path.with_suffix(".keras").name
            return "an HDF5 file", f"convert it: keras.models.load_model({path.name!r}).save({new!r})"
        case ".ipynb":
            script = typed(path.with_suffix(".py"))
            return "a notebook", f"{command('jupyter nbconvert', to='script')} {typed(path)} && partition {script}"
    kind = f"a {path.suffix} file" if path.suffix else "a file without suffix"
    return kind, "name the file that builds the model: partition model.py"


def _planned_source(path: Path) -> str | None:
    """The MODEL that a plan.json was made of; None when the file is no plan."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        return document["model"]["source"] if document["schema"] == SCHEMA else None
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


def _model_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix in (".py", ".keras"))
