"""The answer of the supervisor to a worker that wants a slot for a request."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["SlotGrant"]


class SlotGrant(IntEnum):
    """Whether a slot is granted at once. ``REUSABLE``: the slot is granted and most slots are free,
    so the worker may use it for more requests of the same tenant that come soon."""

    NONE = 0
    ONCE = 1
    REUSABLE = 2
