"""Reads the event logs of background runs, starting at any sequence number, as long as the store
has the events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from weakref import WeakSet

from antiphon.errors import InvalidRequest, ServerStopped
from antiphon.store.base import Store
from antiphon.store.common.subscriptions import Subscription

from .event_codec import Line, lines_after

#: Maximum number of events that one query reads.
_PAGE_SIZE = 500


class EventLogReader:
    """Reads the event logs of background runs from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: The subscriptions of all readers in this process.
        self._tails: WeakSet[Subscription] = WeakSet()
        self._is_stopped = False

    def stop(self) -> None:
        """End the streams of runs that have not ended. Their readers first get all stored
        events."""
        self._is_stopped = True
        for tail in self._tails:
            tail.mark_stale()

    async def check_available(self, tenant: str, response_id: str) -> None:
        """Raise ``InvalidRequest`` if the events of a run are no longer stored."""
        if await self._store.runs.events(tenant, response_id, -1, limit=1) is None:
            raise InvalidRequest(
                "The events of this response are no longer stored. Retrieve it without stream.",
                param="stream",
            )

    async def follow(
        self, tenant: str, response_id: str, after: int = -1
    ) -> AsyncGenerator[list[Line], None]:
        """Yield the events of a run after sequence number ``after``, as lists of lines. Each line
        is one event as JSON. The generator ends when the run ends, and raises ``ServerStopped`` if
        ``stop`` is called before.

        The store stores events in batches, and a batch may be as long as the response. To save
        memory, each batch is released before the next batch is read.
        """
        runs = self._store.runs
        lines: list[Line] = []
        with runs.subscribe(tenant, response_id) as tail:
            tail.is_stale = True
            self._tails.add(tail)
            while True:
                if (batch := tail.next_batch(after)) is not None:
                    for lines in lines_after(batch, after):
                        yield lines
                    after = batch.last
                elif not tail.is_stale:
                    if self._is_stopped:
                        raise ServerStopped("The server was stopped. The response goes on.")
                    await tail.wait()
                else:
                    tail.is_stale = False
                    page = await runs.events(tenant, response_id, after, limit=_PAGE_SIZE)
                    if page is None:
                        return
                    for batch in page.batches:
                        for lines in lines_after(batch, after):
                            yield lines
                        after = batch.last
                    if page.ended:
                        return
                    tail.is_stale = tail.is_stale or bool(page.batches)
                    del page
                lines = []

    async def wait(self, tenant: str, response_id: str) -> None:
        """Wait until the run has ended or was deleted."""
        async with aclosing(self.follow(tenant, response_id)) as events:
            async for _ in events:
                pass
