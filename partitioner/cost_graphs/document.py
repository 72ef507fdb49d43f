"""Stands in for the document of cost graphs until it lands."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.plan_view import Plan

SCHEMA = "partition-cost-graph-plan/1"


@dataclass(frozen=True, kw_only=True)
class CostGraphPlan(Plan):
    """A plan."""

    schema: str = SCHEMA

    def __post_init__(self) -> None:
        """Any schema."""

    @property
    def source(self) -> str:
        """The file."""
        return self.model.source
