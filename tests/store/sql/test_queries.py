"""SQL files: named queries that use indexes, and numbered migrations."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib import resources

import pytest

from antiphon.store.sql.queries import for_sqlite, migrations, queries

STORES = ("antiphon.store.sqlite", "antiphon.store.postgres")
TEXTS = queries("antiphon.store.sqlite", for_sqlite)


def test_every_query_has_a_name() -> None:
    assert len(TEXTS) > 10
    assert all(text and not re.search(r"^-- \w+$", text, re.M) for text in TEXTS.values())


@pytest.mark.parametrize("package", STORES)
def test_no_store_replaces_a_shared_query(package: str) -> None:
    shared, own = (set(named_texts(name)) for name in ("antiphon.store.sql", package))
    assert shared and own and not shared & own


def named_texts(package: str) -> list[str]:
    text = resources.files(package).joinpath("queries.sql").read_text("utf-8")
    lines = re.findall(r"^-- (\w+(?: \| \w+)?)$", text, re.M)
    return [name for line in lines for name in line.split(" | ")]


def test_a_query_of_two_directions_has_both_forms() -> None:
    newest, oldest = (queries(STORES[1])[f"files_{order}"] for order in ("newest", "oldest"))
    assert newest.endswith(
        "seq < coalesce($4::bigint, 9223372036854775807) ORDER BY seq DESC LIMIT $5"
    )
    assert oldest.endswith("seq > coalesce($4::bigint, -1) ORDER BY seq ASC LIMIT $5")


@pytest.mark.parametrize(
    ("shared", "translated"),
    [
        (
            "a = $1::text AND b = ANY ($2::text[])",
            "a = ? AND b IN (SELECT value FROM json_each(?))",
        ),
        ("a = $1 AND b = ANY ($1)", "a = ?1 AND b IN (SELECT value FROM json_each(?1))"),
        ("ctid = ANY (ARRAY(\n    SELECT ctid\n))", "rowid IN (\n    SELECT rowid\n)"),
        ("num_nulls(r.ended_at) = 1 AND live::int = 1", "r.ended_at IS NULL AND live = 1"),
        ("SELECT seq FROM files FOR KEY SHARE", "SELECT seq FROM files"),
        ("INSERT INTO a VALUES ($1)\nRETURNING seq", "INSERT INTO a VALUES (?)"),
        ("FROM a /* sqlite: INDEXED BY b */", "FROM a INDEXED BY b"),
    ],
)
def test_shared_queries_are_translated_for_sqlite(shared: str, translated: str) -> None:
    assert for_sqlite(shared) == translated


def test_queries_run_on_sqlite_3_34() -> None:
    """Some distributions have SQLite 3.34. It knows neither ``RETURNING`` nor the operators ``->``
    and ``->>``."""
    texts = {**TEXTS, **dict(migrations("antiphon.store.sqlite", for_sqlite))}
    assert not [
        name for name, text in texts.items() if re.search(r"\bRETURNING\b|->", text.upper())
    ]


def test_migrations_are_in_order() -> None:
    names = [name for name, _ in migrations("antiphon.store.sqlite", for_sqlite)]
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_arguments_of_sqlite_have_no_needless_numbers() -> None:
    """They cost a warning each in some versions of Python; see ``for_sqlite``."""
    for name, query in queries("antiphon.store.sqlite", for_sqlite).items():
        numbers = [int(number) for number in re.findall(r"\?(\d+)", query)]
        assert not numbers or numbers != list(range(1, len(numbers) + 1)), name


#: Tables that may be scanned: `audit` in the order of its key, up to a limit; the others have a row
#: for each process, running response or tenant.
SCANNED = ("audit", "locks", "owners", "response_totals")


def plan(connection: sqlite3.Connection, query: str) -> list[str]:
    """Return the steps of a query."""
    numbered = re.findall(r"\?(\d+)", query)
    count = max(map(int, numbered)) if numbered else query.count("?")
    found = connection.execute(f"EXPLAIN QUERY PLAN {query}", (None,) * count)
    return [row[3] for row in found.fetchall()]


def test_every_query_uses_an_index() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations("antiphon.store.sqlite", for_sqlite):
            connection.executescript(script)
        for name, query in TEXTS.items():
            for step in plan(connection, query):
                scanned = step.startswith("SCAN") and "INDEX" not in step
                source = step.partition(" ")[2]
                is_derived = source in ("u", "one") or source.startswith(
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
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations("antiphon.store.sqlite", for_sqlite):
            connection.executescript(script)
        for name in PAGES:
            steps = plan(connection, TEXTS[name])
            assert any(re.search(r"(seq|rowid)[<>]\?", step) for step in steps), (name, steps)
