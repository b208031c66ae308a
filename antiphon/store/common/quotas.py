"""Limits on what a tenant may store."""

from __future__ import annotations

__all__ = ["exceeds"]


def exceeds(total: int, limit: int | None) -> bool:
    """Return whether a total is larger than a limit. None means no limit."""
    return limit is not None and total > limit
