"""The contract of a journal. It records what server-side tool calls are about to do, so that no
call runs twice unnoticed, and which approvals of calls have been used.

An entry is stored before its call starts. It then contains the intent of the call. When the call
has ended, the entry also contains the result. A process that takes over a run reads the entries of
the run's calls. An entry without a result belongs to a call that may or may not have been done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["Journal", "JournalEntry"]


class JournalEntry(Struct, frozen=True, kw_only=True):
    """An entry of the journal.

    - ``key``: unique within the tenant: the id of the call's item, or of an approval request.
    - ``response_id``: the response that the entry belongs to.
    - ``attempt``: identifies the attempt to produce the response that has begun the entry.
    - ``intent``: what is about to be done.
    - ``result``: what came of a call, or the response that has used an approval. None until then.
    - ``is_approval``: whether the entry is about an approval. Other entries are about calls of a
      background run, and are deleted with this run. An approval stays used after the response that
      used it was deleted, so its entry is deleted by age (see ``Store.sweep``).
    """

    key: str
    response_id: str
    attempt: str = ""
    intent: bytes = b""
    result: bytes | None = None
    is_approval: bool = False


class Journal(Protocol):
    """The contract of a journal. All methods raise ``StoreError`` if the store does not answer. The
    entries of another tenant count as unknown."""

    @abstractmethod
    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        """Store the entries whose keys are new, in one transaction. Return, for each given entry,
        the stored entry with its key. ``now``: Unix time in seconds.

        If several callers begin entries with the same key, the first entry is stored, and all
        callers get this one. Each caller sees from ``attempt`` whether it is its own, so a caller
        that got no answer can repeat the call.

        An entry about a call is stored only if ``response_id`` is a background run that has not
        ended. Otherwise, None is returned for it, unless the key was stored before.
        """

    @abstractmethod
    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the result ``old`` of an entry by ``new``. None means that there is no result.
        Return whether the result is ``new`` now, so a caller that got no answer can repeat the
        call. Returns False and changes nothing if the entry has another result, or is unknown."""

    @abstractmethod
    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        """Return the entries with these keys, in any order. Unknown keys are left out."""
