"""The values of the setting ``vectors``: how nearest vectors are found."""

from __future__ import annotations

from antiphon.errors import SetupError

__all__ = ["EXACT", "PGVECTOR", "is_qdrant", "needs_postgres"]

EXACT, PGVECTOR = "exact", "pgvector"
_QDRANT = ("qdrant://", "qdrants://")


def is_qdrant(vectors: str) -> bool:
    """Return whether this value of the setting ``vectors`` is the URL of a Qdrant server."""
    return vectors.startswith(_QDRANT)


def needs_postgres(vectors: str) -> bool:
    """Return whether this value of the setting ``vectors`` works only with a PostgreSQL store.
    Raises ``SetupError`` for an unknown value."""
    if vectors not in (EXACT, PGVECTOR) and not is_qdrant(vectors):
        raise SetupError(
            'vectors: use "exact", "pgvector" or qdrant://HOST:PORT, with TLS qdrants://HOST:PORT'
        )
    return vectors != EXACT
