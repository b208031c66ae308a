"""Adds the schema to the table names in queries, so queries work without a ``search_path``.

A connection pooler in transaction mode may give a client another session for each transaction. The
``search_path`` of the earlier session is then lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: The schema of all tables.
SCHEMA = "antiphon"

_CREATED = re.compile(r"CREATE (?:UNLOGGED )?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+)")
_SEQUENCES = ("runs_seq_seq",)


def qualify(queries: Mapping[str, str], migrations: Iterable[str]) -> Mapping[str, str]:
    """Return the queries with the schema's name before the name of each table and view.
    ``migrations``: the scripts that create the tables and views. In the queries, a common table
    expression (WITH) must not have the same name as a table, because the schema's name would be put
    before it too."""
    tables = {name for script in migrations for name in _CREATED.findall(script)}
    names = "|".join(sorted((*tables, *_SEQUENCES), key=len, reverse=True))
    reference = re.compile(
        rf"(\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+|AS asked, |NULL::)({names})\b(?!\.)"
    )
    return {name: reference.sub(rf"\1{SCHEMA}.\2", query) for name, query in queries.items()}
