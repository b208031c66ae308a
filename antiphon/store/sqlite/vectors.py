"""The SQLite vector index, which searches words by the extension FTS5."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.store.sql.vectors import SqlVectorIndex

from .executor import SqliteTransaction


class SqliteVectorIndex(SqlVectorIndex[SqliteTransaction]):
    """The vector index in an SQLite database."""

    def _any_of(self, words: Collection[str]) -> str:
        return " OR ".join('"{}"'.format(word.replace('"', '""')) for word in words)
