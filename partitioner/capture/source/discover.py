"""Choose the model of a Python file, in a strict order; a second candidate is an error, never a guess."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import keras

from partitioner.capture.source.literal_call import LiteralCall, command, parse_call
from partitioner.capture.source.module_file import binding_line, failure, running, shown, typed
from partitioner.errors import ModelError

FACTORIES = ("build_model", "create_model", "make_model", "get_model")
_SAMPLES = {"float": 0.5, "str": "text", "bool": True, "tuple": (1,), "list": [1]}


def find_model(module: ModuleType, path: Path, text: str | None) -> tuple[keras.Model, str]:
    """The model that `text` (a name or a literal call) gives, or the only one `module` offers; and its name.

    Without `text`, in this order: the variable `model`; the only `keras.Model` instance; the only factory
    among `FACTORIES`, called with no arguments. This is the order of `flask.cli.find_best_app`.

    Raises:
        ModelError: There is no model, there are several, or the name does not give a model.
    """
    if text is not None:
        call = parse_call(text, path)
        return _named(module, path, call), call.name
    if isinstance(getattr(module, "model", None), keras.Model):
        return module.model, "model"
    models = _names(module, lambda name, value: isinstance(value, keras.Model))
    if len(models) > 1:
        _several(module, path, models, "models")
    if models:
        return getattr(module, models[0]), models[0]
    factories = _names(module, lambda name, value: name in FACTORIES and _is_factory(value))
    if len(factories) > 1:
        _several(module, path, factories, "model factories")
    if factories:
        return _built(module, path, LiteralCall(text=factories[0], name=factories[0])), factories[0]
    return _none(module, path)


def place_of(path: Path, name: str) -> str:
    """`examples/mlp.py:12 (build_model)`: where the file binds `name`."""
    line = binding_line(path, name)
    return f"{shown(path)}{f':{line}' if line else ''} ({name})"


def _named(module: ModuleType, path: Path, call: LiteralCall) -> keras.Model:
    if not hasattr(module, call.name):
        names = _defined(module)
        close = get_close_matches(call.name, names, n=1)
        raise ModelError(
            f"{shown(path)} defines no {call.name!r}",
            where=shown(path),
            notes=_listed(module, path, names),
            help=command(path, close[0]) if close else _add_a_factory(path),
        )
    value = getattr(module, call.name)
    if isinstance(value, keras.Model) and not call.is_call:
        return value
    if isinstance(value, keras.Model):
        raise ModelError(
            f"{call.name!r} is a model already, not a factory to call",
            where=place_of(path, call.name),
            help=f"leave out the parentheses: {command(path, call.name)}",
        )
    if _is_factory(value) or _is_model_class(value):
        return _built(module, path, call)
    raise ModelError(
        f"{call.name!r} is {_kind(value)}, expected a keras.Model or a function that returns a model",
        where=place_of(path, call.name),
        help=_help_for_model(value, call.name, path),
    )


def _built(module: ModuleType, path: Path, call: LiteralCall) -> keras.Model:
    """Call a factory, or a class that subclasses `keras.Model`."""
    factory = getattr(module, call.name)
    where = place_of(path, call.name)
    _check_arguments(factory, call, where, path)
    written = call.text if call.is_call else f"{call.name}()"
    try:
        with running(path):
            model = factory(*call.args, **call.kwargs)
    except (Exception, SystemExit) as error:
        folder = typed(path.parents[module.__name__.count(".")])
        script = f"import importlib; importlib.import_module('{module.__name__}').{written}"
        raise failure(error, path, written, f'cd {folder} && python -c "{script}"') from error
    if isinstance(model, keras.Model):
        return model
    if model is None:
        raise ModelError(
            f"{written} returned None, expected a keras.Model",
            where=where,
            help=f"did you forget `return model` at the end of {call.name}?",
        )
    raise ModelError(
        f"{written} returned {_kind(model)}, expected a keras.Model",
        where=where,
        help=_help_for_model(model, "it", path),
    )


def _check_arguments(factory: Callable[..., Any], call: LiteralCall, where: str, path: Path) -> None:
    try:
        # keras.Model.__new__ takes anything, and inspect would report its signature for every subclass.
        function = factory.__init__.__get__(object()) if inspect.isclass(factory) else factory
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        required = ", ".join(
            f"{p.name}={_sample(p)!r}"
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        )
        attempt = f"as {call.text}" if call.is_call else "without arguments"
        raise ModelError(
            f"{call.name!r} cannot be called {attempt}: {error}",
            where=where,
            notes=[f"its signature: {call.name}{signature}"],
            help=f"give the arguments as literals: {command(path, f'{call.name}({required})')}",
        ) from error


def _sample(parameter: inspect.Parameter) -> object:
    """A literal of the annotated type, for the command in the help line."""
    annotation = parameter.annotation
    return _SAMPLES.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""), 1)


def _several(module: ModuleType, path: Path, names: list[str], what: str) -> NoReturn:
    raise ModelError(
        f"{shown(path)} holds {len(names)} {what}, expected a single model or a name",
        where=shown(path),
        notes=_listed(module, path, names),
        help=f"name the model: {command(path, names[0])}",
    )


def _none(module: ModuleType, path: Path) -> NoReturn:
    names = _defined(module)
    offers = [name for name in names if _is_model_class(getattr(module, name))]
    offers += [name for name in names if inspect.isfunction(getattr(module, name))]
    notes = _listed(module, path, names) or ["it defines nothing"]
    if "__main__" in path.read_text(encoding="utf-8", errors="replace"):
        notes.append('what stands under `if __name__ == "__main__":` is not run')
    expected = ", ".join(f"{name}()" for name in FACTORIES)
    raise ModelError(
        f"{shown(path)} holds no model: no keras.Model and none of {expected}",
        where=shown(path),
        notes=notes,
        help=f"name what gives the model: {command(path, offers[0])}" if offers else _add_a_factory(path),
    )


def _names(module: ModuleType, wanted: Callable[[str, Any], bool]) -> list[str]:
    """The names of `module` whose values are wanted, one name per value."""
    names: dict[int, str] = {}
    for name, value in vars(module).items():
        if wanted(name, value):
            names.setdefault(id(value), name)
    return list(names.values())


def _defined(module: ModuleType) -> list[str]:
    """The public names that the file itself defines: what it imports from elsewhere is left out."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and not (
            (inspect.isroutine(value) or inspect.isclass(value))
            and getattr(value, "__module__", None) != module.__name__
        )
    ]


def _listed(module: ModuleType, path: Path, names: list[str]) -> list[str]:
    lines = [f"{place_of(path, name)}: {_kind(getattr(module, name))}" for name in names[:12]]
    return lines + ([f"and {len(names) - 12} more"] if len(names) > 12 else [])


def _kind(value: object) -> str:
    if inspect.isfunction(value):
        return "a function"
    kind = value if inspect.isclass(value) else type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"the class {name}" if inspect.isclass(value) else f"a value of type {name}"


def _is_model_class(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, keras.Model)


def _is_factory(value: object) -> bool:
    return callable(value) and not inspect.isclass(value) and not isinstance(value, keras.Layer)


def _help_for_model(value: object, name: str, path: Path) -> str:
    kind = value if inspect.isclass(value) else type(value)
    if kind.__module__.startswith("tf_keras"):
        return "this is Keras 2 (tf_keras): build the model with `import keras` (Keras 3) instead"
    if isinstance(value, keras.Layer):
        return f"make a model of it: model = keras.Sequential([{name}])"
    return _add_a_factory(path)


def _add_a_factory(path: Path) -> str:
    return f"add `def build_model(): ...` that returns the keras.Model, then: partition {typed(path)}"
