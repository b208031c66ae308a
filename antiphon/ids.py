"""Ids of responses, items and other objects: a prefix, 12 digits of time, 36 random digits."""

from __future__ import annotations

import os

__all__ = ["new_id"]


def new_id(prefix: str, now: float) -> str:
    """Return an id that no one can guess. ``now``: Unix time in seconds.

    The time in milliseconds comes first, as in a UUID of version 7 (RFC 9562) and in OpenAI's ids.
    New rows are then added to the end of the indexes of the store. With random ids, each of them
    would change another page.
    """
    return f"{prefix}_{int(now * 1000):012x}{os.urandom(18).hex()}"
