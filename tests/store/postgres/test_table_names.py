"""Queries name the schema of their tables."""

from __future__ import annotations

from antiphon.store.postgres.table_names import qualify

CREATED = ("CREATE TABLE runs (id TEXT); CREATE UNLOGGED TABLE rates (id TEXT);",)


def test_tables_are_named_with_their_schema() -> None:
    query = (
        "WITH gone AS (DELETE FROM runs USING rates AS r) UPDATE runs SET id = runs.id FROM gone"
    )
    assert qualify({"a": query}, CREATED) == {
        "a": (
            "WITH gone AS (DELETE FROM antiphon.runs USING antiphon.rates AS r)"
            " UPDATE antiphon.runs SET id = runs.id FROM gone"
        )
    }


def test_other_names_stay() -> None:
    query = "SELECT x FROM runs_old JOIN runs.x FROM unnest(runs) FOR UPDATE OF r"
    assert qualify({"a": query}, CREATED) == {"a": query}
