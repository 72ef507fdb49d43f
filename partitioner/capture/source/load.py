"""Load MODEL, as the user names it (`PATH[:NAME]`), as a keras.Model."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from partitioner.capture.source.discover import find_model, place_of
from partitioner.capture.source.keras_file import holders_of_code
from partitioner.capture.source.module_file import described, import_file, shown, typed
from partitioner.capture.source.refusal import refusal
from partitioner.errors import ModelError
from partitioner.spelling import argument

# For a path that does not exist: it ends behind a known suffix, or where a colon and a name or call follow.
_PATH_AND_NAME = re.compile(r"(?P<path>.+?\.(?:py|keras)|.+):(?P<name>[A-Za-z_]\w*\s*(?:\(.*\))?)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and where it came from.

    Attributes:
        model: The model, with its compile state.
        source: MODEL as the user gave it.
        where: `examples/mlp.py:12 (build_model)`, for messages.
        example_inputs: The file's variable of that name, or None.
        example_targets: The file's variable of that name, or None.
    """

    model: keras.Model
    source: str
    where: str
    example_inputs: Any = None
    example_targets: Any = None


def load_model(source: str, *, unsafe: bool = False) -> LoadedModel:
    """Load `PATH[:NAME]`: a Python file that holds or builds a model, or a `.keras` file.

    A Python file is imported under its own name with its directory first on `sys.path`; what it prints goes
    to stderr. `find_model` chooses the model of the file. A `.keras` file is loaded in Keras' safe mode.

    Args:
        source: `PATH[:NAME]`.
        unsafe: Whether a `.keras` file may hold Python code (of Lambda layers), which then runs.

    Raises:
        ModelError: There is no such file, it is of another kind, it cannot be loaded, it does not give exactly one
            model, or it holds code and `unsafe` is false.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ModelError(
            f"Keras runs on {backend!r}, expected 'tensorflow': only TensorFlow graphs are partitioned",
            help=f"KERAS_BACKEND=tensorflow partition {source}",
        )
    path, name = split_source(source)
    if path.is_file() and path.suffix == ".py":
        return _load_python(source, path, name)
    if path.is_file() and path.suffix == ".keras":
        return _load_keras(source, path, name, unsafe=unsafe)
    raise refusal(path)


def split_source(source: str) -> tuple[Path, str | None]:
    """Split `PATH[:NAME]` into an absolute path and the name, if any.

    The longest text before a colon that exists is the path, so that drive letters and colons in directories
    or in arguments do no harm. If nothing exists, the path ends behind `.py` or `.keras`, or where a name
    follows.
    """
    for cut in (len(source), *(match.start() for match in reversed([*re.finditer(":", source)]))):
        if _exists(source[:cut]):
            return Path(source[:cut]).resolve(), source[cut + 1 :] if cut < len(source) else None
    if match := _PATH_AND_NAME.fullmatch(source):
        return Path(match["path"]).resolve(), match["name"]
    return Path(source).resolve(), None


def _load_python(source: str, path: Path, name: str | None) -> LoadedModel:
    module = import_file(path)
    model, name_in_module = find_model(module, path, name)
    # An imported factory brings its own file's examples.
    home = sys.modules.get(getattr(getattr(module, name_in_module), "__module__", ""), module)

    def example(variable: str) -> Any:
        return getattr(module, variable, getattr(home, variable, None))

    return LoadedModel(
        model=model,
        source=source,
        where=place_of(path, name_in_module),
        example_inputs=example("example_inputs"),
        example_targets=example("example_targets"),
    )


def _load_keras(source: str, path: Path, name: str | None, *, unsafe: bool) -> LoadedModel:
    if name is not None:
        raise ModelError(
            f"a .keras file holds a single model; {name!r} behind the colon names none",
            where=shown(path),
            help=f"partition {typed(path)}",
        )
    if not unsafe and (holders := holders_of_code(path)):
        raise ModelError(
            f"{shown(path)} holds Python code, in {', '.join(holders)}, and loading would run it",
            where=shown(path),
            help=f"if you trust the file: {argument('unsafe', True)}",
        )
    try:
        model = keras.models.load_model(path, safe_mode=not unsafe)
    except Exception as error:
        loader = typed(path.with_suffix(".py"))
        raise ModelError(
            f"{shown(path)} cannot be loaded by keras.models.load_model",
            where=shown(path),
            notes=described(error),
            help="custom classes? write a file that imports their code and says"
            f" `model = keras.models.load_model({path.name!r}, ...)`, then: partition {loader}",
        ) from error
    if not isinstance(model, keras.Model):
        kind = type(model).__qualname__
        raise ModelError(f"{shown(path)} holds a {kind}, expected a keras.Model", where=shown(path))
    return LoadedModel(model=model, source=source, where=f"{shown(path)} ({model.name})")


def _exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except OSError:  # a long call is no possible file name
        return False
