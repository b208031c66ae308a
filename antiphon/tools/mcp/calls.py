"""The tools of MCP servers: their lists, and their calls, including those that a server finishes
later as a task.

A list is cached for as long as its server allows (``ttlMs``), so most requests need no round trip
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.support.aging_cache import AgingCache
from antiphon.support.tasks import BackgroundTasks
from antiphon.tools.base import CallContext

from .request import ListedTool
from .results import FailureDetails, McpFailure
from .sessions import SessionKey, SessionPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp import Client
    from mcp_types import CallToolResult, RequestParamsMeta

    from .tasks import TaskState

#: The name in ``_meta`` under which an MCP server gets the idempotency key of a call.
IDEMPOTENCY_KEY = "io.antiphon/idempotency-key"

_INVALID_PARAMS = -32602
_INTERNAL = -32603
#: Seconds between two requests for the state of a task, if the server names no interval, and the
#: shortest interval.
_POLL_S, _MIN_POLL_S = 1.0, 0.05
#: Number of such requests that fail one after another before the call fails.
_MAX_LOST_POLLS = 5
#: Seconds that servers have to cancel their tasks when this process stops.
_CLOSE_S = 10.0


class McpCaller:
    """Calls tools of MCP servers. ``lists``: the lists of their tools."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self.lists = ToolLists(pool)
        self._cancelling = BackgroundTasks("end of an MCP task")

    async def close(self) -> None:
        """Close all MCP sessions."""
        await self._cancelling.close(_CLOSE_S)
        await self._pool.close()

    async def call(
        self, session: SessionKey, name: str, arguments: dict[str, Any], context: CallContext
    ) -> CallToolResult:
        """Call a tool and return its result. Raises ``McpFailure``.

        If the server starts a task, the id of the task is noted (``CallContext.keep_note``). A call
        with a note waits for its task, and starts nothing.
        """
        if context.note:
            return await self._finish(session, context.note.decode(), _POLL_S, context)
        meta = {IDEMPOTENCY_KEY: context.idempotency_key, **context.trace}

        async def start(client: Client) -> CallToolResult:
            return await client.call_tool(name, arguments, meta=cast("RequestParamsMeta", meta))

        try:
            result = await self._pool.call(session, start)
        except McpFailure as error:
            if error.details.error.get("code") == _INVALID_PARAMS:
                self.lists.forget(session)  # perhaps the tool is gone, or takes other arguments
            raise
        from .tasks import StartedTask

        if not isinstance(result, StartedTask):
            return result
        seconds = _poll_seconds(result.task)
        return await self._finish(session, result.task.task_id, seconds, context)

    async def _finish(
        self, session: SessionKey, task_id: str, seconds: float, context: CallContext
    ) -> CallToolResult:
        """Wait for the end of a task and return its result. If the call fails, cancel the task. If
        the call is cancelled, another process may wait for the task, unless the response has ended
        or the id of the task cannot be noted. ``seconds``: the time until the first request for the
        state of the task."""
        has_ended: Callable[[], Awaitable[bool]] | None = context.has_ended
        try:
            if not context.note and not await context.keep_note(task_id.encode()):
                has_ended = None
            return await self._poll(session, task_id, seconds)
        except BaseException as error:
            is_over = isinstance(error, McpFailure) or has_ended is None
            self._cancelling.start(self._cancel(session, task_id, None if is_over else has_ended))
            if isinstance(error, McpFailure):  # only the request for the state was not processed
                raise McpFailure(replace(error.details, not_processed=False)) from error
            raise

    async def _poll(self, session: SessionKey, task_id: str, seconds: float) -> CallToolResult:
        lost = 0
        while True:
            await asyncio.sleep(seconds)
            try:
                state = await self._pool.call(session, lambda client: _state(client, task_id))
            except McpFailure as error:
                lost += 1
                if not error.details.may_pass or lost == _MAX_LOST_POLLS:
                    raise
                continue
            lost = 0
            if state.result is not None:
                return state.result
            if state.status != "working":
                raise McpFailure(_end_details(state))
            seconds = _poll_seconds(state)

    async def _cancel(
        self,
        session: SessionKey,
        task_id: str,
        has_ended: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        """Ask the server to stop a task, unless the response may still wait for its result."""
        if has_ended is not None and not await has_ended():
            return
        from .tasks import CancelTask, EmptyAnswer, TaskRequest

        request = CancelTask(params=TaskRequest(task_id=task_id))
        try:
            await self._pool.call(
                session, lambda client: client.session.send_request(request, EmptyAnswer)
            )
        except McpFailure:
            return  # the task ends by itself


def _state(client: Client, task_id: str) -> Awaitable[TaskState]:
    from .tasks import GetTask, TaskRequest, TaskState

    return client.session.send_request(GetTask(params=TaskRequest(task_id=task_id)), TaskState)


def _poll_seconds(state: TaskState) -> float:
    if state.poll_interval_ms is None:
        return _POLL_S
    return max(_MIN_POLL_S, state.poll_interval_ms / 1000)


def _end_details(state: TaskState) -> FailureDetails:
    """Return why a task that has ended, or waits for input, has no result."""
    code, message = _INTERNAL, state.status_message or f"The task is {state.status}."
    if state.status == "input_required":
        message = "The task asks for input, which this server cannot give (elicitation)."
    elif state.error is not None:
        code = state.error.get("code", code)
        message = str(state.error.get("message", message))
    return FailureDetails(error={"type": "mcp_protocol_error", "code": code, "message": message})


_MAX_PAGES = 100
_MAX_TOOLS = 1_000
#: The size of all cached lists together, as JSON.
_MAX_BYTES = 16 * 2**20
_MAX_AGE_S = 24 * 3600.0


class _ToolList(Struct, frozen=True):
    """The tools of an MCP server. ``max_age_s``: how long the list may be used. ``is_public``:
    whether the server allows that other tenants use it."""

    tools: tuple[ListedTool, ...]
    max_age_s: float
    is_public: bool


class ToolLists:
    """Lists the tools of MCP servers.

    A list that a server calls public is shared between tenants only if Antiphon sends no
    credentials to this server.
    """

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._cache: AgingCache[_ToolList] = AgingCache(max_bytes=_MAX_BYTES, max_age_s=_MAX_AGE_S)
        #: Number of calls of ``forget``. If it grows while a list is fetched, the list may be out
        #: of date, and is not cached.
        self._forgotten = 0

    async def get(self, session: SessionKey, trace: Mapping[str, str]) -> tuple[ListedTool, ...]:
        """Return the tools of an MCP server, from the cache if possible. ``trace``: the trace
        context to send. Raises ``McpFailure``."""
        if (cached := self.cached(session)) is not None:
            return cached
        return await self.fetch(session, trace)

    async def fetch(self, session: SessionKey, trace: Mapping[str, str]) -> tuple[ListedTool, ...]:
        """Ask an MCP server for its tools, as ``get`` does if the cache does not contain them."""
        forgotten = self._forgotten
        found = await self._pool.call(session, lambda client: _fetch(client, dict(trace)))
        if found.max_age_s > 0 and forgotten == self._forgotten:
            server = session.server
            shared = found.is_public and not (server.headers or server.env or server.oauth)
            own, public = _keys(session)
            size = len(msgspec.json.encode(found.tools))
            self._cache.add(public if shared else own, found, size)
        return found.tools

    def cached(self, session: SessionKey) -> tuple[ListedTool, ...] | None:
        """Return the cached tools of an MCP server, or None."""
        now = asyncio.get_running_loop().time()
        for key in _keys(session):
            entry = self._cache.get(key)
            if entry is not None and now < entry.added_at + entry.value.max_age_s:
                return entry.value.tools
        return None

    def forget(self, session: SessionKey) -> None:
        """Drop the list of an MCP server, because the server contradicted it."""
        self._forgotten += 1
        for key in _keys(session):
            self._cache.remove(key)


def _keys(session: SessionKey) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the keys of a list that only this tenant may use, and of a list that all may use."""
    return (session.tenant, session.server.key), ("", session.server.key)


async def _fetch(client: Client, trace: dict[str, str]) -> _ToolList:
    """Return the tools that an MCP server offers, from all pages of its list, up to ``_MAX_TOOLS``
    tools. ``client``: the client that is connected to the server."""
    tools: list[ListedTool] = []
    max_age_ms, is_public = float("inf"), True
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor, meta=cast("RequestParamsMeta", trace))
        max_age_ms = min(max_age_ms, page.ttl_ms)
        is_public = is_public and page.cache_scope == "public"
        for tool in page.tools[: _MAX_TOOLS - len(tools)]:
            annotations = tool.annotations
            tools.append(
                ListedTool(
                    name=tool.name,
                    input_schema=tool.input_schema,
                    description=tool.description,
                    annotations=None
                    if annotations is None
                    else annotations.model_dump(by_alias=True, exclude_none=True, mode="json"),
                )
            )
        cursor = page.next_cursor
        if cursor is None or len(tools) >= _MAX_TOOLS:
            break
    return _ToolList(tuple(tools), min(max_age_ms / 1000, _MAX_AGE_S), is_public)
