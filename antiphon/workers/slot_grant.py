"""The answer of the supervisor to a worker that requests a slot. A slot is the permission to run
one request."""

from __future__ import annotations

from enum import IntEnum


class SlotGrant(IntEnum):
    """Whether a slot is granted immediately.

    - ``NONE``: no slot is free.
    - ``ONCE``: the slot is granted for one request.
    - ``REUSABLE``: the slot is granted, and most slots are free. So the worker may keep the slot
      for a moment after the request, for further requests of the same tenant.
    """

    NONE = 0
    ONCE = 1
    REUSABLE = 2
