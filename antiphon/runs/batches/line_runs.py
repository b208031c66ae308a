"""The runs of the lines of batches.

A line that generates text is a run in the store, like a background response: it is executed once,
even if a process dies, and its tool calls are in the journal. But it is in no queue: the process
that executes its batch claims it by name while the server has nothing else to do, and releases it
when another request arrives.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import count

from antiphon.errors import NotFound, RunError
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.runs.background.worker import BackgroundWorker
from antiphon.runs.execution.run import EventSink
from antiphon.store.base import Store
from antiphon.store.records import StoredResponse
from antiphon.wire.object_ids import STORED_CHAT_ID
from antiphon.wire.response import Response

#: Seconds between two looks at the tools of a run that is to be released.
_INTERVAL_S = 0.02
_PREFIXES = ("resp", STORED_CHAT_ID)


def line_response_id(line: str, choice: int, prefix: str) -> str:
    """Return the id of the response to a line. ``choice``: the index of the answer, if the request
    asks for several."""
    return f"{prefix}_{sha256(f'{line} {choice}'.encode()).hexdigest()[:48]}"


class LineRuns:
    """The runs of the lines that this process executes.

    - ``worker`` returns a worker for one run. Its arguments are the id of the response and the name
      of the owner.
    - ``end`` ends a run that nobody needs any more.
    """

    def __init__(
        self,
        store: Store,
        event_logs: EventLogReader,
        *,
        worker: Callable[[str, str], BackgroundWorker],
        end: Callable[[str, StoredResponse], Awaitable[None]],
    ) -> None:
        self.store = store
        self.event_logs = event_logs
        self._worker = worker
        self._end = end
        #: Names of owners that claim nothing now.
        self._owners: list[str] = []
        #: The responses with ``store: false``, by their lines.
        self._unstored: dict[str, set[str]] = {}
        #: Until when tool calls may end, on the clock of the event loop.
        self._stops_at = math.inf

    def start(
        self, tenant: str, line: str, response: Response, ignored_tools: tuple[str, ...]
    ) -> LineRun:
        """Return the run of a line, whose response is stored."""
        if not response.store:
            self._unstored.setdefault(line, set()).add(response.id)
        return LineRun(self, tenant, response, ignored_tools)

    async def execute(self, tenant: str, response_id: str) -> None:
        """Execute a run to its end. If the caller is cancelled, the run is released, and can be
        continued later. Tool calls end before."""
        owner = self._owners.pop() if self._owners else secrets.token_hex(8)
        worker = self._worker(response_id, owner)
        worker.start()
        try:
            await self.event_logs.wait(tenant, response_id)
        finally:
            while worker.runs_tools and asyncio.get_running_loop().time() < self._stops_at:
                await asyncio.sleep(_INTERVAL_S)
            await worker.drain(0)
            self._owners.append(owner)

    async def forget(self, tenant: str, line: str) -> None:
        """Delete the responses of a line that are not to be stored, because its result is."""
        for response_id in self._unstored.pop(line, ()):
            await self.store.delete(tenant, response_id)

    async def abandon(self, tenant: str, line: str) -> None:
        """End the runs of a line that will not be executed to its end."""
        for prefix in _PREFIXES:
            for choice in count():
                response_id = line_response_id(line, choice, prefix)
                stored = await self.store.load(tenant, response_id)
                if stored is None:
                    break
                await self._end(tenant, stored)
        await self.forget(tenant, line)

    def stop_after(self, grace_s: float) -> None:
        """Wait at most this many seconds for tool calls from now on."""
        self._stops_at = asyncio.get_running_loop().time() + grace_s


class LineRun:
    """The run of a line. It has the attributes of a ``Run`` that endpoints use."""

    #: Nobody reads the events of a line.
    event_count = 0

    def __init__(
        self, runs: LineRuns, tenant: str, response: Response, ignored_tools: tuple[str, ...]
    ) -> None:
        self._runs = runs
        self._tenant = tenant
        self.response = response
        self.id = response.id
        self.ignored_tools = ignored_tools
        self.input_tokens = 0

    def fail(self, error: RunError) -> None:
        """Do nothing: no client waits for a line."""

    async def drive(self, sink: EventSink | None = None) -> Response:
        """Execute the run to its end, or wait until another process has executed it. Return the
        response. Raises ``NotFound`` if it was deleted."""
        if self.response.status == "queued":
            await self._runs.execute(self._tenant, self.id)
        stored = await self._runs.store.load(self._tenant, self.id)
        if stored is None:
            raise NotFound(f"Response with id '{self.id}' not found.")
        self.response = stored.response
        return self.response
