"""The text behind the colon of `model.py:build(depth=50)`: a name, or a call with literal arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partitioner.capture.source.module_file import shown, typed
from partitioner.errors import ModelError

_NOT_LITERAL = (ValueError, TypeError, SyntaxError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralCall:
    """A name, or a call of it. `text` has normal spaces and quotes, whatever the user typed."""

    text: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_call(self) -> bool:
        """Whether it has parentheses."""
        return self.text != self.name


def parse_call(text: str, path: Path) -> LiteralCall:
    """Read `build` or `build(50, depth=2)`; nothing is evaluated but literals (`ast.literal_eval`).

    Raises:
        ModelError: It is neither a name nor a call, or an argument is not a literal.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        node = None
    if isinstance(node, ast.Name):
        return LiteralCall(text=node.id, name=node.id)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ModelError(
            f"{text!r} names no model: expected a name, or a call with literal arguments",
            where=shown(path),
            help=f"{command(path, 'build_model')}, or {command(path, 'build_model(depth=2)')}",
        )
    try:
        args = tuple(ast.literal_eval(arg) for arg in node.args)
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        if len(kwargs) == len(node.keywords):  # no repeated keyword, no `**more`
            return LiteralCall(text=ast.unparse(node), name=node.func.id, args=args, kwargs=kwargs)
    except _NOT_LITERAL:
        pass
    raise ModelError(
        f"the arguments of {text!r} must be literals: numbers, strings, True, None, tuples, lists, dicts",
        where=shown(path),
        notes=["nothing is evaluated: names, attributes and expressions are not looked up"],
        help=command(path, _with_quoted_names(node) or f"{node.func.id}(depth=2)"),
    )


def command(path: Path, call: str) -> str:
    """The command line that partitions `call` of `path`."""
    return f"partition {typed(path, call)}"


def _with_quoted_names(node: ast.Call) -> str | None:
    """The call with its arguments' bare names made strings, if that makes it literal."""

    class Quote(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Constant:
            return ast.Constant(node.id)

    args = [Quote().visit(arg) for arg in node.args]
    keywords = [ast.keyword(keyword.arg, Quote().visit(keyword.value)) for keyword in node.keywords]
    try:
        for value in (*args, *(keyword.value for keyword in keywords)):
            ast.literal_eval(value)
    except _NOT_LITERAL:
        return None
    unpacked = any(keyword.arg is None for keyword in keywords)
    return None if unpacked else ast.unparse(ast.Call(node.func, args, keywords))
