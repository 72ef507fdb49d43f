"""Read the plan of a cost graph of the first versions: in a model's document, with fields set to zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PER_SECOND = {"ms": 1e3, "s": 1.0}


def is_first_document(document: Any) -> bool:
    """Whether a plan.json holds the plan of a cost graph in the document of a model."""
    return isinstance(document, dict) and isinstance(document.get("cost_graph"), dict)


def fields_of_today(old: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `CostGraphPlan`, except its schema.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is of another type.
    """
    info, solver, model = old["cost_graph"], old["solver"], old["model"]
    per_second = _PER_SECOND[solver["unit"]]
    return {
        "graph": {
            "name": model["name"],
            "source": model["source"],
            "fingerprint": model["fingerprint"],
            "num_nodes": model["num_ops"],
            "num_values": info["num_values"],
            "unit": solver["unit"],
        },
        "contiguous": info["contiguous"],
        "devices": [
            {"name": device["name"], "kind": device["hardware"], "memory_bytes": device["memory_bytes"] or None}
            for device in old["devices"]
        ],
        "pieces": [
            {
                "device": stage["device"],
                "nodes": stage["layers"],
                "compute": info["compute"][stage["device"]],
                "transfer": info["transfer"][stage["device"]],
                "memory_bytes": stage["peak_bytes"],
                "send_bytes": stage["send_bytes"],
            }
            for stage in old["stages"]
        ],
        "placement": old["placement"],
        "solver": solver,
        "baselines": [
            {"name": baseline["name"], "load": baseline["step_seconds"] * per_second, "fits": baseline["fits"]}
            for baseline in old["baselines"]
        ],
        "requirements": old.get("requirements", []),
        "descriptions": {layer["name"]: layer["class_name"] for layer in old.get("layers", [])},
        "edges": old.get("edges", []),
        "what_if": old.get("what_if", []),
        "notes": old.get("notes", []),
        "versions": old.get("versions", {}),
    }
