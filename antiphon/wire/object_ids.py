"""Ids of responses, items and other objects. An id is a prefix, 12 digits of time and 36 random
digits."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["STORED_CHAT_ID", "IdMaker", "new_id"]

#: The prefix of the id of a response that is a stored chat completion.
STORED_CHAT_ID = "resp_chat"

#: Number of random bytes of an id. Number of ids whose random bytes are read at once.
_RANDOM_BYTES, _IDS_PER_READ = 18, 128


def new_id(prefix: str, now: float) -> str:
    """Return a new id that no one can guess. ``now``: Unix time in seconds.

    The id begins with the time in milliseconds, like a UUID of version 7 (RFC 9562) and OpenAI's
    ids. So ids increase, and the store adds new rows at the end of its indexes. With random ids,
    each new row would change a different page of the index.
    """
    return _join(prefix, now, os.urandom(_RANDOM_BYTES).hex())


class IdMaker:
    """Makes ids like those of ``new_id``, but faster. ``clock`` returns Unix seconds.

    Random bytes are read for many ids at once, because each call of ``os.urandom`` releases the
    GIL. Several threads may use an instance. After a fork, do not use an instance in both
    processes: they would make the same ids.
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
        return _join(prefix, self._clock(), digits)

    def _read(self) -> str:
        """Read random digits for many ids. Return the digits for one id, and keep the other digits
        for later ids."""
        digits, size = os.urandom(_RANDOM_BYTES * _IDS_PER_READ).hex(), 2 * _RANDOM_BYTES
        self._random += [digits[at : at + size] for at in range(size, len(digits), size)]
        return digits[:size]


def _join(prefix: str, now: float, digits: str) -> str:
    milliseconds = int(now * 1000).to_bytes(6, "big")
    return f"{prefix}_{milliseconds.hex()}{digits}"
