"""Ids of responses, items and other objects. An id is a prefix, 12 digits of time and 36 random
digits."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["IdMaker", "new_id"]

#: Number of random bytes of an id, and of the ids whose random bytes are read together.
_RANDOM_BYTES, _READ_IDS = 18, 128


def new_id(prefix: str, now: float) -> str:
    """Return a new id that no one can guess. ``now``: Unix time in seconds.

    The id begins with the time in milliseconds, like a UUID of version 7 (RFC 9562) and OpenAI's
    ids. So the store adds new rows at the end of its indexes. With random ids, each new row would
    change a different page of the index.
    """
    return f"{prefix}_{int(now * 1000):012x}{os.urandom(_RANDOM_BYTES).hex()}"


class IdMaker:
    """Makes ids like ``new_id``, for a process that makes many. ``clock``: returns Unix seconds.

    The random bytes of many ids are read together, because each call of ``os.urandom`` lets another
    thread run in between. A process that was forked must not go on using the object of its parent:
    both would make the same ids. May be called from several threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._random: list[str] = []

    def __call__(self, prefix: str) -> str:
        """Return a new id that no one can guess."""
        try:
            digits = self._random.pop()
        except IndexError:
            digits = self._read()
        return f"{prefix}_{int(self._clock() * 1000):012x}{digits}"

    def _read(self) -> str:
        """Read the random digits of the next ids, and return those of one more id."""
        digits, size = os.urandom(_RANDOM_BYTES * _READ_IDS).hex(), 2 * _RANDOM_BYTES
        self._random += [digits[at : at + size] for at in range(size, len(digits), size)]
        return digits[:size]
