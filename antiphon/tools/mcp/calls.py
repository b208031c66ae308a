"""Calls of the tools of MCP servers, including those that a server finishes later as a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from antiphon.support.tasks import BackgroundTasks
from antiphon.tools.base import CallContext

from .results import FailureDetails, McpFailure
from .sessions import SessionKey, SessionPool
from .tool_lists import ToolLists

if TYPE_CHECKING:
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
            return await self._finish(session, context.note.decode(), _POLL_S, context.has_ended)
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
        task_id = result.task.task_id
        is_durable = await context.keep_note(task_id.encode())
        seconds, has_ended = _poll_seconds(result.task), context.has_ended if is_durable else None
        return await self._finish(session, task_id, seconds, has_ended)

    async def _finish(
        self,
        session: SessionKey,
        task_id: str,
        seconds: float,
        has_ended: Callable[[], Awaitable[bool]] | None,
    ) -> CallToolResult:
        """Wait for the end of a task and return its result. If the call fails, cancel the task.

        - ``seconds``: the time until the first request for the state of the task.
        - ``has_ended``: returns whether the response has ended. If the call is cancelled and the
          response has not ended, another process waits for the task. None if this cannot be.
        """
        try:
            return await self._poll(session, task_id, seconds)
        except BaseException as error:
            is_over = isinstance(error, McpFailure) or has_ended is None
            self._cancelling.start(self._cancel(session, task_id, None if is_over else has_ended))
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
