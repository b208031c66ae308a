"""SQL files: named queries that use indexes, and numbered migrations."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from antiphon.store.common.sql import migrations, queries


def test_every_query_has_a_name() -> None:
    named = queries("antiphon.store.sqlite")
    assert len(named) > 10
    assert all(text and not re.search(r"^-- \w+$", text, re.M) for text in named.values())


def test_queries_run_on_sqlite_3_34() -> None:
    """Some distributions ship SQLite 3.34, which lacks RETURNING and the operators of JSON."""
    texts = {**queries("antiphon.store.sqlite"), **dict(migrations("antiphon.store.sqlite"))}
    assert not [
        name for name, text in texts.items() if re.search(r"\bRETURNING\b|->", text.upper())
    ]


def test_migrations_are_in_order() -> None:
    names = [name for name, _ in migrations("antiphon.store.sqlite")]
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


#: Tables that may be scanned: `audit` in the order of its key, up to a limit; the others have a row
#: for each process or running response.
SCANNED = ("audit", "locks", "owners")


def plan(connection: sqlite3.Connection, query: str) -> list[str]:
    """Return the steps of a query."""
    numbered = re.findall(r"\?(\d+)", query)
    count = max(map(int, numbered)) if numbered else query.count("?")
    found = connection.execute(f"EXPLAIN QUERY PLAN {query}", (None,) * count)
    return [row[3] for row in found.fetchall()]


def test_every_query_uses_an_index() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations("antiphon.store.sqlite"):
            connection.executescript(script)
        for name, query in queries("antiphon.store.sqlite").items():
            for step in plan(connection, query):
                scanned = step.startswith("SCAN") and "INDEX" not in step
                source = step.partition(" ")[2]
                is_derived = source == "u" or source.startswith(
                    ("chain", "queued", "tenants", "(subquery", "CONSTANT", *SCANNED)
                )
                is_rare = name.startswith("drop_tenant_")
                assert not scanned or is_derived or is_rare, (name, step)


#: Queries of a page: its rows are found by their number, without those of the pages before.
PAGES = (
    "audit_newest",
    "audit_oldest",
    "files_newest",
    "files_oldest",
    "newest_vector_files",
    "oldest_vector_files",
    "summaries_newest",
    "summaries_oldest",
)


def test_pages_begin_at_their_cursor() -> None:
    texts = queries("antiphon.store.sqlite")
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations("antiphon.store.sqlite"):
            connection.executescript(script)
        for name in PAGES:
            steps = plan(connection, texts[name])
            assert any(re.search(r"(seq|rowid)[<>]\?", step) for step in steps), (name, steps)
