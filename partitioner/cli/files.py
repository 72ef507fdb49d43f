"""Read the file of a sub-command. The sub-command decides how a file is read; a wrong file is refused, and its schema
is read only to name the right sub-command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from partitioner.cost_graphs.document import SCHEMA as COST_GRAPH_SCHEMA
from partitioner.cost_graphs.document import CostGraphPlan
from partitioner.errors import UsageError
from partitioner.ir.json import decoded
from partitioner.ir.plan import SCHEMA as MODEL_SCHEMA
from partitioner.plan_view import Plan

_SUFFIXES_OF_MODELS = (".py", ".keras")
_SUFFIXES_OF_OTHERS = (".json", ".txt")


def refuse_as_model(source: str) -> None:
    """Refuse a MODEL whose suffix is neither that of a Python file nor that of a Keras file.

    Raises:
        UsageError: The error names the right sub-command.
    """
    path = source.split(":")[0]
    if not path.endswith(_SUFFIXES_OF_OTHERS):
        return
    _read(path)
    refuse_as_plan(path)
    raise UsageError(
        f"{path} is not a model, which is a .py or a .keras file", help=f"if it is a cost graph: partition graph {path}"
    )


def refuse_model(path: str, command: str) -> None:
    """Refuse a model where another file is expected.

    Raises:
        UsageError: Its suffix is that of a model.
    """
    source = path.split(":")[0]
    if source.endswith(_SUFFIXES_OF_MODELS):
        raise UsageError(
            f"{path} is a model, which `partition {command}` does not read",
            help=f"partition {path} --devices GPU:0,GPU:1",
        )


def refuse_as_plan(path: str) -> None:
    """Refuse a plan where another file is expected.

    Raises:
        UsageError: It is a plan.
    """
    try:
        schema = _schema(_document(Path(path).read_bytes()))
    except OSError:
        return
    if schema in (MODEL_SCHEMA, COST_GRAPH_SCHEMA):
        raise UsageError(f"{path} is a plan (schema {schema})", help=f"partition show {path}")


def plan_file(path: str) -> Path:
    """The plan.json that a path names: itself, or the one in an output directory."""
    return Path(path) / "plan.json" if Path(path).is_dir() else Path(path)


def load_plan(path: str, command: str) -> Plan | CostGraphPlan:
    """Load a plan, of a model or of a cost graph by its schema: a plan.json, or the output directory that holds one.

    Raises:
        UsageError: The file cannot be read, or is not a plan.
    """
    refuse_model(path, command)
    path = str(plan_file(path))
    document = _document(_read(path))
    schema = _schema(document)
    # Earlier versions gave the plan of a cost graph the schema of a model's.
    is_of_cost_graph = schema == COST_GRAPH_SCHEMA or document.get("cost_graph") is not None
    kind = CostGraphPlan if is_of_cost_graph else Plan
    try:
        return kind.load(path)
    except msgspec.DecodeError as error:
        if schema is None:
            raise UsageError(
                f"{path} is not a plan: it has no schema", help=f"if it is a cost graph: partition graph {path}"
            ) from error
        is_other_version = schema not in (MODEL_SCHEMA, COST_GRAPH_SCHEMA) and schema.startswith("partition-")
        help = "plan anew, or use the version of partition that wrote it" if is_other_version else None
        raise UsageError(
            f"{path} is not a plan: {error}", help=help or "give a plan.json that partition wrote"
        ) from error


def load_model_plan(path: str, command: str) -> Plan:
    """Load the plan of a model.

    Raises:
        UsageError: The file is no such plan.
    """
    plan = load_plan(path, command)
    if isinstance(plan, CostGraphPlan):
        raise UsageError(
            f"{path} is the plan of a cost graph (schema {plan.schema}), which has no model",
            help=f"partition check {path}",
        )
    return plan


def load_cost_graph_plan(path: str, command: str) -> CostGraphPlan:
    """Load the plan of a cost graph.

    Raises:
        UsageError: The file is no such plan.
    """
    plan = load_plan(path, command)
    if not isinstance(plan, CostGraphPlan):
        raise UsageError(
            f"{path} is the plan of a model (schema {plan.schema}), which is checked by running it",
            help=f"partition verify {path} {plan.model.source or 'MODEL'}",
        )
    return plan


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from error


def _document(text: bytes) -> dict[str, Any]:
    """A JSON document; empty if the text is no JSON object."""
    try:
        document = decoded(text)
    except msgspec.DecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _schema(document: Mapping[str, Any]) -> str | None:
    """The schema that a document names."""
    schema = document.get("schema")
    return schema if isinstance(schema, str) else None
