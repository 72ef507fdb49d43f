"""Run a user's Python file under its own name, and say which of its lines failed."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from partitioner.errors import ModelError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _ModelFileLoader(SourceFileLoader):
    """Executes the file as it is now; nothing is read from or written to `__pycache__`."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(path: Path) -> ModuleType:
    """Execute `path` anew as the module of its own name, registered so that its classes can be serialized.

    The name is the file's stem; where the directory holds an `__init__.py`, the packages' names go before it,
    so that relative imports work. What the file prints goes to stderr.

    Raises:
        ModelError: The file has a syntax error, raises, exits, or has the name of another imported module.
    """
    name = _module_name(path)
    previous = sys.modules.get(name)
    if previous is not None and not _may_replace(previous, path):
        raise ModelError(
            f"the file's name hides the module {name!r}, which is already imported",
            where=shown(path),
            notes=[f"{name!r} is {getattr(previous, '__file__', None) or 'part of Python'}"],
            help=f"rename the file: mv {typed(path)} {typed(path.with_name(f'my_{path.name}'))}",
        )
    loader = _ModelFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # a loader was given
    module = module_from_spec(spec)
    try:
        with running(path):
            if package := name.rpartition(".")[0]:
                importlib.import_module(package)
            sys.modules[name] = module
            loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if previous is not None:
            sys.modules[name] = previous
        if isinstance(error, Exception | SystemExit):
            raise failure(error, path, f"importing {shown(path)}", f"python {typed(path)}") from error
        raise
    return module


@contextmanager
def running(path: Path) -> Iterator[None]:
    """Run code as `python FILE` would: its directory first on `sys.path`, and without our arguments.

    What it prints goes to stderr: stdout is for the result only.
    """
    root = path.parents[_module_name(path).count(".")]
    entries = list(dict.fromkeys((str(path.parent), str(root))))
    argv = sys.argv
    sys.path[:0], sys.argv = entries, [str(path)]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = argv
        for entry in entries:
            with suppress(ValueError):  # the code took it out itself
                sys.path.remove(entry)


def failure(error: BaseException, path: Path, doing: str, command: str) -> ModelError:
    """The error that shows which of the user's own lines failed while `doing`; `command` repeats it."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return _syntax_failure(error)
    frame = _user_frame(error, path)
    where, notes = shown(path), []
    if frame is not None:
        where = f"{shown(frame.filename)}:{frame.lineno} ({frame.name})"
        notes = [frame.line] if frame.line else []
    if isinstance(error, SystemExit):
        return ModelError(
            f"{doing} ended in sys.exit({'' if error.code is None else repr(error.code)})",
            where=where,
            notes=notes,
            help='put the script part under `if __name__ == "__main__":` and keep the model outside it',
        )
    notes += described(error)
    help = f"the whole traceback: {command}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        help = f"install it, e.g. pip install {error.name.partition('.')[0]}, or put it beside {shown(path)}"
    return ModelError(f"{doing} raised {type(error).__name__}", where=where, notes=notes, help=help)


def described(error: BaseException, num_lines: int = 12) -> list[str]:
    """`ValueError: its message`, at most `num_lines` lines, without blank lines and the colours that Keras writes."""
    text = _COLOUR.sub("", str(error)).strip() or "(no message)"
    first, *others = [line for line in text.splitlines() if line.strip()]
    return [f"{type(error).__name__}: {first}", *others[: num_lines - 1]]


def binding_line(path: Path, name: str) -> int | None:
    """The last line (1, 2, ...) that binds `name` outside functions and classes; None if no line does."""
    lines: list[int] = []
    todo: list[ast.AST] = [ast.parse(path.read_bytes())]
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = [node.name]
            case ast.Import() | ast.ImportFrom():
                bound = [alias.asname or alias.name for alias in node.names]
            case ast.Name(ctx=ast.Store()):
                bound = [node.id]
            case _:
                bound = []
        if name in bound:
            lines.append(node.lineno)  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))
    return max(lines, default=None)


def shown(path: str | Path) -> str:
    """The path as people read it: from the working directory where it lies inside, otherwise whole."""
    path, here = Path(path).resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def typed(path: str | Path, name: str = "") -> str:
    """`PATH` or `PATH:NAME` as it is typed into a shell: in double quotes where it needs them."""
    text = shown(path) + (f":{name}" if name else "")
    return f'"{text}"' if set(text) & set(" ()'&;*$") else text


def _module_name(path: Path) -> str:
    folder, parts = path.parent, [] if path.name == "__init__.py" else [path.stem.replace(".", "_")]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts or [folder.name])


def _may_replace(module: ModuleType, path: Path) -> bool:
    """A model file takes the place of itself or of an earlier model file, never of `json` or `keras`."""
    file = getattr(module, "__file__", None)
    same = file is not None and Path(file).exists() and path.samefile(file)
    return same or isinstance(getattr(module, "__loader__", None), _ModelFileLoader)


def _user_frame(error: BaseException, path: Path) -> traceback.FrameSummary | None:
    """The deepest frame in the user's own code: in the file's directory, outside any installed package."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(path.parent) and "site-packages" not in Path(frame.filename).parts
    ]
    return own[-1] if own else None


def _syntax_failure(error: SyntaxError) -> ModelError:
    file = shown(error.filename or "")
    notes = []
    if error.text:
        indent = len(error.text) - len(error.text.lstrip())
        notes = [error.text.strip(), " " * max(0, (error.offset or 1) - 1 - indent) + "^"]
    return ModelError(
        f"{file} is not valid Python: {error.msg}",
        where=f"{file}:{error.lineno or 1}",
        notes=notes,
        help=f"correct the line; to check it: python {typed(file)}",
    )
