"""Ids of responses, items and other objects. An id is a prefix, 12 digits of time and 36 random
digits."""

from __future__ import annotations

import os

__all__ = ["new_id"]


def new_id(prefix: str, now: float) -> str:
    """Return a new id that no one can guess. ``now``: Unix time in seconds.

    The id begins with the time in milliseconds, like a UUID of version 7 (RFC 9562) and OpenAI's
    ids. So the store adds new rows at the end of its indexes. With random ids, each new row would
    change a different page of the index.
    """
    return f"{prefix}_{int(now * 1000):012x}{os.urandom(18).hex()}"
