"""A pool of open MCP sessions. Each session is opened and closed by an asyncio task of its own.

A session is reused. It is closed when it has not been used for some time. By default, a session
belongs to one conversation, because the MCP server may keep state in the session. If the endpoint
has ``shares_sessions``, all conversations of a tenant use one session. Different tenants or
credentials never share a session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from antiphon.support.aging_cache import AgingCache
from antiphon.support.tasks import BackgroundTasks
from antiphon.tools.base import ResponseContext

from .endpoint import McpEndpoint, RequestTrace, current_trace
from .results import McpFailure, describe_failure, refuses_version

if TYPE_CHECKING:
    from mcp import Client

    from .transport import McpConnector

_log = structlog.get_logger(__name__)

R = TypeVar("R")
#: The tenant, the conversation, and ``McpEndpoint.key`` of the server.
_EntryKey = tuple[str, str, str]


class SessionKey(NamedTuple):
    """Identifies the MCP session for a tenant, a conversation and an MCP server. ``conversation``
    is empty if all conversations of the tenant share the session."""

    tenant: str
    conversation: str
    server: McpEndpoint

    @classmethod
    def for_response(cls, response: ResponseContext, server: McpEndpoint) -> SessionKey:
        """Return the key of the session that a response uses to call an MCP server."""
        conversation = response.conversation_id or response.response_id
        return cls(response.tenant, "" if server.shares_sessions else conversation, server)


#: For how many servers, and for how many seconds, the era is remembered.
_MAX_ERAS, _ERA_S = 1_000, 3_600.0
#: Seconds that a session may take to close, and to end after it was cancelled.
_CLOSE_S, _CANCEL_S = 10.0, 5.0


class _Session:
    """A connection to an MCP server, and the task that opens and closes the connection.

    - ``era``: how the server negotiates the version of the protocol (``McpConnector.connect``), as
      an earlier session has found out. Empty if this is not known.
    - ``seconds``: time limit for opening the TCP connection.
    """

    def __init__(
        self, connector: McpConnector, server: McpEndpoint, era: str, seconds: float
    ) -> None:
        #: Whether the server has not confirmed ``era`` yet.
        self.is_unconfirmed = bool(era)
        self._close_requested = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._trace = RequestTrace()
        self._tasks = BackgroundTasks("MCP session")
        self._tasks.start(self._run(connector, server, era, seconds))

    async def _run(
        self, connector: McpConnector, server: McpEndpoint, era: str, seconds: float
    ) -> None:
        current_trace.set(self._trace)
        try:
            async with connector.connect(server, seconds, era) as client:
                self._ready.set_result(client)
                await self._close_requested.wait()
        except Exception as error:
            if not self._ready.done():
                details = describe_failure(error, self._trace)
                _log.info("an MCP server was not reached", server=server.name, why=details.summary)
                self._ready.set_exception(McpFailure(details))
            else:
                _log.info("an MCP session ended", error=type(error).__name__)
        finally:
            if not self._ready.done():
                self._ready.set_exception(McpFailure(describe_failure(EOFError(), self._trace)))
            if not self._ready.cancelled():
                self._ready.exception()  # mark the exception as retrieved

    @property
    def has_ended(self) -> bool:
        return not self._tasks

    async def client(self, seconds: float) -> Client:
        """Wait until the MCP server has answered, and return the client. ``seconds``: maximum time
        to wait. Raises ``McpFailure``."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise McpFailure(describe_failure(TimeoutError(), self._trace)) from None

    async def close(self) -> None:
        """Ask the asyncio task that owns the connection to close it. If that takes too long, cancel
        the task."""
        self._close_requested.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S + _CANCEL_S):
                await self._tasks.close(_CLOSE_S if self._ready.done() else 0)


class _PoolEntry:
    """An entry of the pool, for one ``SessionKey``: the session, if it is open, and the number of
    calls that use it now."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.session: _Session | None = None
        self.users = 0
        self.closing: asyncio.TimerHandle | None = None


class SessionPool:
    """The open MCP sessions of this process.

    - ``connect_s``: time limit for connecting and initializing, in seconds.
    - ``call_s``: time limit for the result of a call, in seconds.
    - ``idle_s``: seconds after which an unused session is closed.
    - ``max_sessions``: the maximum number of sessions. If there are more, unused sessions are
      closed.
    """

    def __init__(
        self,
        *,
        connect_s: float = 20.0,
        call_s: float = 120.0,
        idle_s: float = 300.0,
        max_sessions: int = 64,
    ) -> None:
        self._max_sessions = max_sessions
        self._call_s = call_s
        self._connect_s = connect_s
        self._idle_s = idle_s
        #: Entries in order of use. The entry that was used last comes last.
        self._entries: dict[_EntryKey, _PoolEntry] = {}
        self._closing = BackgroundTasks("end of an MCP session")
        self._connector: McpConnector | None = None
        #: The eras of servers with a URL, by tenant and ``McpEndpoint.key``.
        self._eras: AgingCache[str] = AgingCache(max_bytes=_MAX_ERAS, max_age_s=_ERA_S)

    async def call(self, key: SessionKey, operation: Callable[[Client], Awaitable[R]]) -> R:
        """Run ``operation`` with the client of the session, and return the result of the operation.

        A reused session may have ended before the MCP server processed the request, or the server
        may have rejected the protocol's version that it used to speak. In these cases, the
        operation runs once more in a new session. Raises ``McpFailure``, with ``not_processed`` if
        the operation has certainly changed nothing.
        """
        not_processed = True
        async with self._entry(key) as entry:
            for is_last in (False, True):
                try:
                    session, client, is_new = await self._client(entry, key)
                except McpFailure as error:  # the operation did not run
                    details = replace(error.details, not_processed=not_processed)
                    raise McpFailure(details) from error
                trace = RequestTrace()
                token = current_trace.set(trace)
                try:
                    async with asyncio.timeout(self._call_s):
                        result = await operation(client)
                    session.is_unconfirmed = False
                    return result
                except Exception as error:
                    details = describe_failure(error, trace)
                    is_refused = session.is_unconfirmed and refuses_version(details, trace)
                    if details.session_ended or is_refused:
                        self._eras.remove((key.tenant, key.server.key))
                        await self._discard_session(entry, session)
                    can_retry = is_refused or (details.can_retry and not is_new)
                    not_processed = not_processed and details.not_processed
                    if is_last or not can_retry:
                        details = replace(details, not_processed=not_processed)
                        raise McpFailure(details) from error
                finally:
                    current_trace.reset(token)
        raise AssertionError("the second attempt returns or raises")

    async def close(self) -> None:
        """Close all sessions."""
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.closing is not None:
                entry.closing.cancel()
        sessions = [entry.session for entry in entries if entry.session is not None]
        await asyncio.gather(*(session.close() for session in sessions), self._closing.wait())

    # --- entries ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _entry(self, session: SessionKey) -> AsyncIterator[_PoolEntry]:
        key = (session.tenant, session.conversation, session.server.key)
        entry = self._entries.setdefault(key, _PoolEntry())
        entry.users += 1
        if entry.closing is not None:
            entry.closing.cancel()
            entry.closing = None
        try:
            self._close_excess()
            yield entry
        finally:
            entry.users -= 1
            if self._entries.get(key) is entry:
                self._entries[key] = self._entries.pop(key)
                if entry.users == 0:
                    loop = asyncio.get_running_loop()
                    entry.closing = loop.call_later(self._idle_s, self._forget, key)
                    self._close_excess()

    async def _client(self, entry: _PoolEntry, key: SessionKey) -> tuple[_Session, Client, bool]:
        """Return the entry's session with its client, and whether the session is new. Opens a
        session if there is none."""
        async with entry.lock:
            if entry.session is not None and not entry.session.has_ended:
                return entry.session, await entry.session.client(self._connect_s), False
            if self._connector is None:
                made = await asyncio.to_thread(_make_connector)
                self._connector = self._connector or made  # another call was perhaps faster
            known = self._eras.get((key.tenant, key.server.key))
            era = known.value if known is not None else ""
            try:
                session, client = await self._open(key.server, era)
            except McpFailure:
                if not era:
                    raise
                era = ""  # the server may have changed
                session, client = await self._open(key.server, era)
            if not era and key.server.url:
                self._eras.add((key.tenant, key.server.key), self._connector.era_of(client), 1)
            entry.session = session
            return session, client, True

    async def _open(self, server: McpEndpoint, era: str) -> tuple[_Session, Client]:
        """Open a session. Raises ``McpFailure``."""
        assert self._connector is not None
        session = _Session(self._connector, server, era, self._connect_s)
        try:
            return session, await session.client(self._connect_s)
        except BaseException:
            self._close(session)
            raise

    async def _discard_session(self, entry: _PoolEntry, session: _Session) -> None:
        """Close a session, so that the next call opens a new one. Do nothing if another call has
        already replaced it."""
        async with entry.lock:
            if entry.session is session:
                entry.session = None
                self._close(session)

    def _close_excess(self) -> None:
        """Close unused sessions as long as there are more than ``max_sessions``. The tenant with
        the most unused sessions loses its least recently used session first."""
        while len(self._entries) > self._max_sessions:
            unused = [key for key, entry in self._entries.items() if entry.users == 0]
            if not unused:
                return
            counts = Counter(tenant for tenant, _, _ in unused)
            most = max(counts.values())
            self._forget(next(key for key in unused if counts[key[0]] == most))

    def _forget(self, key: _EntryKey) -> None:
        entry = self._entries.pop(key)
        if entry.closing is not None:
            entry.closing.cancel()
        if entry.session is not None:
            self._close(entry.session)

    def _close(self, session: _Session) -> None:
        self._closing.start(session.close())


def _make_connector() -> McpConnector:
    """Make an ``McpConnector``. The first call imports the MCP SDK, which takes about a second. So
    call this function in a thread."""
    from .transport import McpConnector

    return McpConnector()
