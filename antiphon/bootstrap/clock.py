"""The clock and the source of random ids that the parts of a server get."""

from __future__ import annotations

import time

from antiphon.wire.object_ids import new_id

#: Returns the current time in Unix seconds.
read_clock = time.time  # noqa: TID251 - the clock that the other parts are given


def create_id(prefix: str) -> str:
    """Return a new random id. ``prefix``: the prefix that shows the kind of the object."""
    return new_id(prefix, read_clock())
