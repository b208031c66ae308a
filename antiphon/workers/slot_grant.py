"""The answer of the supervisor to a worker that asks for a slot, which a request needs while it
runs."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["SlotGrant"]


class SlotGrant(IntEnum):
    """Whether a slot is granted at once. ``NONE``: no slot is free. ``ONCE``: the slot is granted
    for one request. ``REUSABLE``: the slot is granted and most slots are free. So the worker may
    also use it for further requests of the same tenant that come soon."""

    NONE = 0
    ONCE = 1
    REUSABLE = 2
