"""Queries and migrations as files: named, in order, and never a walk through a whole table."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from antiphon.store.sql import migrations, queries


def test_every_query_has_its_name() -> None:
    named = queries("antiphon.store.sqlite")
    assert len(named) > 10
    assert all(text and "-- " not in text for text in named.values())


def test_queries_speak_what_old_sqlite_understands() -> None:
    """Python 3.11 of long-lived distributions comes with SQLite 3.34, which knows no RETURNING."""
    assert not [
        name
        for name, text in queries("antiphon.store.sqlite").items()
        if "RETURNING" in text.upper()
    ]


def test_migrations_come_in_the_order_of_their_numbers() -> None:
    names = [name for name, _ in migrations("antiphon.store.sqlite")]
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_every_query_finds_its_rows_by_an_index() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations("antiphon.store.sqlite"):
            connection.executescript(script)
        for name, query in queries("antiphon.store.sqlite").items():
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", (None,) * query.count("?"))
            for _, _, _, step in plan.fetchall():
                walked = step.startswith("SCAN") and "INDEX" not in step
                assert not walked or step.split()[1] in ("totals", "chain"), (name, step)
