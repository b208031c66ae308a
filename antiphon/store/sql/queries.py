"""Read the SQL files of a store: its queries, each with a name, and its numbered migrations.

The queries, tables and indexes that are equal in all databases are in the SQL files of this
package, in the language of PostgreSQL. ``for_sqlite`` translates the little in which SQLite's
language differs. The others are in the SQL files of the package of each store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources

#: The name of a query, or the two names of queries that differ in few words. Where they differ, the
#: text has both forms in braces: ``{> | <}``.
_NAMES = re.compile(r"^-- (\w+)(?: \| (\w+))?\n", re.MULTILINE)
_FORMS = re.compile(r"\{([^{}|]*) \| ([^{}|]*)\}")

#: Where a script of a store contains the shared one.
_SHARED = "-- {shared}\n"

_ARGUMENT = re.compile(r"\$(\d+)")

#: What is different in SQLite: arguments, types of values, arrays (which are JSON lists), and locks
#: of rows, which SQLite does not need. A comment that begins with "sqlite:" is for SQLite alone.
_FOR_SQLITE = (
    (_ARGUMENT, r"?\1"),
    (re.compile(r"::\w+(?:\[\])?"), ""),
    (re.compile(r"\bBIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"), "INTEGER PRIMARY KEY"),
    (re.compile(r"\bBIGINT\b"), "INTEGER"),
    (re.compile(r"\bBYTEA\b"), "BLOB"),
    (re.compile(r"\bDOUBLE PRECISION\b"), "REAL"),
    (re.compile(r"= ANY \((\?\d*)\)"), r"IN (SELECT value FROM json_each(\1))"),
    (re.compile(r"= ANY \(ARRAY\("), "IN ("),
    (re.compile(r"\n\)\)"), r"\n)"),
    (re.compile(r"num_nulls\(([\w.]+)\) = 1"), r"\1 IS NULL"),
    (re.compile(r"\bctid\b"), "rowid"),
    (re.compile(r"\blive\b(?! =)"), "live = 1"),  # a partial index needs this very condition
    (re.compile(r"\bchr\("), "char("),
    (re.compile(r", (?:r\.)?blob(?=\sFROM)"), ""),  # SQLite has no large responses in blobs
    (re.compile(r"\sFOR (?:KEY )?(?:UPDATE|SHARE)(?: SKIP LOCKED)?"), ""),
    (re.compile(r"\sRETURNING \w+$"), ""),  # the row number, which SQLite tells without it
    (re.compile(r"/\* sqlite: ([^*]*) \*/"), r"\1"),
)


@cache
def queries(package: str, translate: Callable[[str], str] = str) -> Mapping[str, str]:
    """Return the queries of a store package by their names: those that all stores share, in the
    language to which ``translate`` translates them, and those of the package itself."""
    shared = {name: translate(text) for name, text in _named_texts(__package__)}
    return {**shared, **dict(_named_texts(package))}


def for_sqlite(query: str) -> str:
    """Translate a query that all stores share into the language of SQLite.

    If its arguments are in order, they get no numbers. For each numbered argument, Python 3.12
    before 3.12.4 makes a warning, even if all warnings are ignored. The warnings of a save took
    longer than the save itself.
    """
    numbers = [int(number) for number in _ARGUMENT.findall(query)]
    if numbers == list(range(1, len(numbers) + 1)):
        query = _ARGUMENT.sub("?", query)
    for pattern, replacement in _FOR_SQLITE:
        query = pattern.sub(replacement, query)
    return query


def _named_texts(package: str) -> Iterator[tuple[str, str]]:
    text = resources.files(package).joinpath("queries.sql").read_text("utf-8")
    _, *pieces = _NAMES.split(text)
    for first, second, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if second is None:
            yield first, body.strip()
        else:
            yield first, _FORMS.sub(r"\1", body).strip()
            yield second, _FORMS.sub(r"\2", body).strip()


@cache
def migrations(package: str, translate: Callable[[str], str] = str) -> tuple[tuple[str, str], ...]:
    """Return the name and the script of each migration of a store package, in the order in which
    they are applied. A script may contain the shared script with the same name, translated. A name
    contains a digest of its script, so a store does not open if it was made with another form of a
    script."""
    shared, own = (_scripts(each) for each in (__package__, package))
    scripts = {
        name: text.replace(_SHARED, translate(shared.get(name, "")))
        for name, text in sorted(own.items())
    }
    return tuple(
        (f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:8]}", script)
        for name, script in scripts.items()
    )


def _scripts(package: str) -> dict[str, str]:
    """Return the scripts of the folder ``migrations`` of a package, by name."""
    files = resources.files(package).joinpath("migrations").iterdir()
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8")
        for file in files
        if file.name.endswith(".sql")
    }
