"""Snapshots: the current states of running background responses. They are cached between polls.

A client may poll a run every second. Each poll reads only the events since the previous poll. The
run may be executed by another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from antiphon.store.base import Store
from antiphon.stream.fold import Fold
from antiphon.stream.kinds import ItemKind
from antiphon.wire.items import ItemBase
from antiphon.wire.response import Response

from .event_codec import decode_events

#: Maximum number of events that one query reads.
_PAGE_SIZE = 500
#: Limit of the cache: total bytes of the events that the states were built from. One state is
#: always kept.
_MAX_BYTES = 64 << 20

#: Tenant, id and creation time of a response. The time is needed because a response may be deleted
#: and created again with the same id.
_Key = tuple[str, str, int]


class _State:
    """The state of one run, rebuilt from its events. ``after``: the sequence number of the last
    event that was read."""

    def __init__(self, kinds: Mapping[type[ItemBase], ItemKind]) -> None:
        self.fold = Fold(kinds)
        self.after = -1
        self.bytes = 0
        #: One poll reads at a time.
        self.lock = asyncio.Lock()


class Snapshots:
    """Cache of the current states of the runs that clients polled most recently. ``kinds``: the
    table of item kinds."""

    def __init__(self, store: Store, kinds: Mapping[type[ItemBase], ItemKind]) -> None:
        self._store = store
        self._kinds = kinds
        #: Least recently polled first.
        self._states: dict[_Key, _State] = {}

    def __len__(self) -> int:
        """Return the number of runs whose state is kept."""
        return len(self._states)

    async def read(self, tenant: str, response: Response) -> Response | None:
        """Return the current state of a running response. Returns None if the run has ended."""
        key = (tenant, response.id, response.created_at)
        state = self._states.pop(key, None) or _State(self._kinds)
        self._states[key] = state
        async with state.lock:
            has_ended = await self._update(tenant, response.id, state)
            snapshot = None if has_ended else state.fold.response
        if has_ended:
            self._states.pop(key, None)
        self._evict()
        return snapshot

    async def _update(self, tenant: str, response_id: str, state: _State) -> bool:
        """Read the events since the last poll into ``state``. Return whether the run has ended or
        was deleted."""
        while True:
            page = await self._store.runs.events(tenant, response_id, state.after, limit=_PAGE_SIZE)
            if page is None or page.ended:
                return True
            if not page.batches:
                return False
            for event in decode_events(page.batches):
                state.fold.feed(event)
            state.after = page.batches[-1].last
            state.bytes += sum(len(batch.lines) for batch in page.batches)

    def _evict(self) -> None:
        """Remove run states from the cache until their total size is within the limit. The state of
        the run that was polled longest ago is removed first."""
        total = sum(state.bytes for state in self._states.values())
        while total > _MAX_BYTES and len(self._states) > 1:
            total -= self._states.pop(next(iter(self._states))).bytes
